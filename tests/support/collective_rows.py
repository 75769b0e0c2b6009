"""Collectives of a job, from rows that a test writes down."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from laggard.kit.constants import OPS
from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.locate.job_timings import JobTimings


class Row(NamedTuple):
    """One rank's part in a collective, a send or a receive, by that rank's clock."""

    column: int
    step: int
    group: int
    op: str
    seq: int
    start: float
    end: float
    waited: float = math.nan
    size: int = 1000
    peer: int = -1


def collectives(rows: Iterable[Row], groups: Sequence[ProcessGroup]) -> Collectives:
    numbers = ((it.column, it.step, it.group, OPS.index(it.op), it.seq, it.size, it.peer, *it[5:8]) for it in rows)
    return Collectives.from_records(numbers, groups)


def of(timings: JobTimings) -> Collectives:
    """The collectives of a job that has some."""
    assert timings.collectives is not None
    return timings.collectives


def changed(timings: JobTimings, **changes: Any) -> JobTimings:
    """The job with other values of its collectives."""
    return dataclasses.replace(timings, collectives=dataclasses.replace(of(timings), **changes))


def only(timings: JobTimings, kept: np.ndarray) -> JobTimings:
    """The job with those records of its collectives that are `kept`."""
    return changed(timings, **{name: getattr(of(timings), name)[kept] for name in Row._fields})
