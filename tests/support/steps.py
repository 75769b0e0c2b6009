"""Steps written down in seconds, as a table or in a rank file's nanoseconds."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from laggard.locate.job_timings import NO_STEPS, Table
from laggard.rankfile import Step


class StepRow(NamedTuple):
    """One rank's step. `phases`: own time in the order of constants.PHASES."""

    step: int
    start: float
    end: float
    phases: tuple[float, ...]
    waited: float
    work: int = 0


def step_table(rows: Iterable[StepRow]) -> Table:
    told = [(row.step, row.start, row.end, row.waited, row.work, *row.phases) for row in rows]
    return np.array(told, np.float64) if told else NO_STEPS


def step_rows(table: Table) -> Iterator[StepRow]:
    """The steps that step_table() was made of."""
    for step, start, end, waited, work, *phases in table.tolist():
        yield StepRow(int(step), start, end, tuple(phases), waited, int(work))


def numbers(table: Table) -> list[int]:
    """The numbers of the steps."""
    return [row.step for row in step_rows(table)]


def in_nanoseconds(row: StepRow) -> Step:
    start, end, waited, *phases = (round(seconds * 1e9) for seconds in (row.start, row.end, row.waited, *row.phases))
    return Step(row.step, start, end, tuple(phases), waited, row.work)
