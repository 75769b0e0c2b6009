"""The steps of an agent's answer from packed columns, checked all at once: there are hundreds of thousands of them a
round. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from laggard.limits import MAX_CLOCK, MAX_COUNT, MAX_SECONDS
from laggard.locate.step_tables import END, FIRST_PHASE, START, STEP, STEP_COLUMNS, WORK, Table
from laggard.wire.codec import require
from laggard.wire.ranks import PackedSteps

MAX_STEPS: Final = 1 << 17
"""The most steps of all ranks of an answer, 15 MB as a table: columns that are not sent could stand for any number.
Agents tell of 65,536 at most."""

_TYPES: Final[Mapping[int, np.dtype[Any]]] = {4: np.dtype("<u4"), 8: np.dtype("<i8")}
"""A number of 8 bytes that is too large for a signed one is too large for a step, too: it becomes a negative one, which
is refused."""


def _limits() -> NDArray[np.float64]:
    limits = np.full(STEP_COLUMNS, MAX_SECONDS)
    limits[[STEP, WORK]], limits[[START, END]] = MAX_COUNT, MAX_CLOCK
    return limits


_LIMITS: Final = _limits()


def unpacked(steps: PackedSteps, ranks: int, most: int) -> Table:
    """The steps of all ranks, one after the other, as one Table. On the wire each column stands where the table has it,
    and a step's length in the place of its end. `most`: of a rank. Raises WireError where they are not those of so many
    `ranks`, but looks at no number: that is for is_possible()."""
    require(len(steps.counts) == ranks, "the packed steps are not of as many ranks")
    require(all([0 <= count <= most for count in steps.counts]), f"more than {most} steps of a rank")
    total = sum(steps.counts)
    require(total <= MAX_STEPS, f"more than {MAX_STEPS} steps")
    require(len(steps.widths) == STEP_COLUMNS, f"the packed steps have other than {STEP_COLUMNS} columns")
    require(all([width in (0, 4, 8) for width in steps.widths]), "the width of a packed column is none")
    require(len(steps.columns) == total * sum(steps.widths), "the packed steps are cut off, or too long")
    table = np.empty((total, STEP_COLUMNS))
    begin = 0
    for place, width in enumerate(steps.widths):
        if width:
            table[:, place] = np.frombuffer(steps.columns, _TYPES[width], total, begin)
        else:
            table[:, place] = 0.0
        begin += total * width
    if total:
        _put_ends(table, steps)
        table[:, START:WORK] /= 1e9
        table[:, FIRST_PHASE:] /= 1e9
    table.flags.writeable = False
    return table


def is_possible(table: Table) -> bool:
    """Whether all numbers of a Table are within what a step can be."""
    if not len(table):
        return True
    seconds = table[:, END] - table[:, START]
    within_limits = table.min() >= 0 and bool((table.max(axis=0) <= _LIMITS).all())
    return bool(within_limits and seconds.min() >= 0 and seconds.max() <= MAX_SECONDS)


def steps_by_rank(table: Table, counts: Iterable[int]) -> Iterator[Table]:
    """The part of the table that is each rank's own, of which each has so many steps."""
    begin = 0
    for count in counts:
        yield table[begin : (begin := begin + count)]


def _put_ends(table: NDArray[np.float64], steps: PackedSteps) -> None:
    """Puts the ends in the place of the lengths: added as whole numbers, since a sum of rounded ones differs."""
    first, total = sum(steps.widths[:START]) * len(table), len(table)
    found = np.zeros(total, np.int64)
    for width in steps.widths[START : END + 1]:
        if width:
            found += np.frombuffer(steps.columns, _TYPES[width], total, first)
        first += total * width
    table[:, END] = found
