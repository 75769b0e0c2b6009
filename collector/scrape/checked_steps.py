"""The steps in an agent's answer, checked all at once: there are hundreds of thousands of them a round. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from laggard.collector.scrape.bounds import MAX_CLOCK, MAX_COUNT, MAX_SECONDS, all_within, require, within
from laggard.constants import PHASES
from laggard.locate.step_tables import END, START, STEP, STEP_COLUMNS, WORK, step_table
from laggard.wire.ranks import RankRow, StepRow


def _limits() -> NDArray[np.float64]:
    limits = np.full(STEP_COLUMNS, MAX_SECONDS)
    limits[[STEP, WORK]], limits[[START, END]] = MAX_COUNT, MAX_CLOCK
    return limits


_LIMITS: Final = _limits()


def possible_steps(ranks: Sequence[RankRow]) -> NDArray[np.float64] | None:
    """The steps of all `ranks`, one after the other, as one step_table(); None where check_step() is to say what is
    wrong with one of them."""
    try:
        table = step_table(chain.from_iterable([row.rows for row in ranks]))
    except (struct.error, OverflowError):
        return None
    return table if is_possible(table) else None


def is_possible(table: NDArray[np.float64]) -> bool:
    """Whether all numbers of a step_table() are within what a step can be."""
    if not len(table):
        return True
    seconds = table[:, END] - table[:, START]
    # Below the limits, not at them: a number beyond a limit may have been rounded to it.
    within_limits = table.min() >= 0 and bool((table.max(axis=0) < _LIMITS).all())
    return bool(within_limits and seconds.min() >= 0 and seconds.max() < MAX_SECONDS)


def steps_by_rank(table: NDArray[np.float64], counts: Iterable[int]) -> Iterator[NDArray[np.float64]]:
    """The part of the table that is each rank's own, of which each has so many steps."""
    begin = 0
    for count in counts:
        yield table[begin : (begin := begin + count)]


def check_step(where: str, row: StepRow) -> None:
    """Raises WireError that says what is wrong with the step."""
    require(within(row.step, MAX_COUNT), f"{where}: a step number is out of range")
    require(within(row.work, MAX_COUNT), f"{where}: a step's work is out of range")
    place = f"{where}, step {row.step}"
    require(len(row.phases) == len(PHASES), f"{place}: phases are not {len(PHASES)}")
    require(within(row.start, MAX_CLOCK) and row.start <= row.end <= MAX_CLOCK, f"{place}: ends before it starts")
    require(all_within((row.end - row.start, row.waited, *row.phases), MAX_SECONDS), f"{place}: a time is out of range")
