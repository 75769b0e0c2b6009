"""The steps of one rank as a table, and of many ranks as arrays by step and rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES

STEP, START, END, WAITED, WORK, FIRST_PHASE = range(6)
"""The columns of a Table."""
STEP_COLUMNS = FIRST_PHASE + len(PHASES)

BLOCK_RANKS: Final = 64
"""The most ranks whose steps are put in place at once: more would not fit into a core's cache."""

Table = NDArray[np.float64]
"""The steps of one rank, an array [steps, STEP_COLUMNS], in seconds on its node's monotonic clock. After the columns
stand its own times by phase, in the order of constants.PHASES. A double holds every number of a step exactly."""

NO_STEPS: Final[Table] = np.empty((0, STEP_COLUMNS))


class StepArrays(NamedTuple):
    """Seconds over S steps and R ranks; nan where a rank has no such step."""

    steps: NDArray[np.int64]  # [S]
    step_seconds: NDArray[np.float64]  # [S, R]
    phase_seconds: NDArray[np.float64]  # [S, R, len(PHASES)]
    waited_seconds: NDArray[np.float64]  # [S, R]
    work: NDArray[np.float32]  # [S, R]


def distinct_steps(tables: Sequence[Table]) -> NDArray[np.int64]:
    """The numbers of the steps in any of the tables, ascending. Each table is ascending by step."""
    one_of_each: dict[tuple[int, float, float] | int, Table] = {}
    for place, table in enumerate(tables):
        if len(table):
            first, last = table[0, STEP], table[-1, STEP]
            gapless = last - first == len(table) - 1  # then another of the same ends has the same steps
            one_of_each.setdefault((len(table), first, last) if gapless else place, table)
    numbers = [table[:, STEP] for table in one_of_each.values()]
    return _distinct(np.concatenate(numbers).astype(np.int64)) if numbers else np.zeros(0, np.int64)


def step_arrays(tables: Sequence[Table]) -> StepArrays:
    """The steps of ranks with these tables, each ascending by step."""
    steps = distinct_steps(tables)
    shape = (len(steps), len(tables))
    # Each phase is an array of its own in memory: phases are looked at one by one.
    phases = np.empty((len(PHASES), *shape)).transpose(1, 2, 0)
    arrays = StepArrays(steps, np.empty(shape), phases, np.empty(shape), np.empty(shape, np.float32))
    begin = 0
    for alike in _blocks(tables):
        columns, begin = slice(begin, begin + len(alike)), begin + len(alike)
        _put(arrays, columns, alike)
    return arrays


def over_phases(seconds: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """[S, R]: the sum of `seconds` [S, R, P], added up in the order of np.sum() over the last axis of an array in C's
    order, so that it is the same to the bit whatever the order in memory, in a third of the time or less."""
    phases = [seconds[:, :, phase] for phase in range(seconds.shape[2])]
    if not 8 <= len(phases) < 16:
        found: NDArray[np.floating[Any]] = np.ascontiguousarray(seconds).sum(axis=2)
        return found
    one, two, three, four, five, six, seven, eight, *rest = phases
    total: NDArray[np.floating[Any]] = ((one + two) + (three + four)) + ((five + six) + (seven + eight))
    for each in rest:
        total += each
    return total


def _blocks(tables: Sequence[Table]) -> Iterator[NDArray[np.float64]]:
    """The tables one after the other, those of neighbours with the same steps together: [ranks, steps, columns]."""
    for (length, *_), neighbours in groupby(tables, _ends):
        several = list(neighbours)
        for first in range(0, len(several), BLOCK_RANKS):
            some = several[first : first + BLOCK_RANKS]
            block = np.concatenate(some).reshape(len(some), length, STEP_COLUMNS)
            if (block[:, :, STEP] == block[0, :, STEP]).all():
                yield block
            else:  # there are gaps within
                yield from block[:, np.newaxis]


def _ends(table: Table) -> tuple[int, Any, Any]:
    return (len(table), table[0, STEP], table[-1, STEP]) if len(table) else (0, None, None)


def _put(arrays: StepArrays, columns: slice, block: NDArray[np.float64]) -> None:
    """Puts the steps of a block into the columns of its ranks, and nan where it has no such step."""
    by_step = block.transpose(1, 0, 2)
    rows = _rows(np.searchsorted(arrays.steps, block[0, :, STEP]))
    _fill(arrays.step_seconds, rows, columns, by_step[:, :, END] - by_step[:, :, START])
    _fill(arrays.phase_seconds, rows, columns, by_step[:, :, FIRST_PHASE:])
    _fill(arrays.waited_seconds, rows, columns, by_step[:, :, WAITED])
    _fill(arrays.work, rows, columns, by_step[:, :, WORK])


def _fill(
    array: NDArray[np.floating[Any]], rows: slice | NDArray[np.int64], columns: slice, values: NDArray[np.float64]
) -> None:
    if isinstance(rows, slice):
        array[: rows.start, columns] = array[rows.stop :, columns] = np.nan
    else:
        array[:, columns] = np.nan
    array[rows, columns] = values


def _rows(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """The same rows, as a slice where they follow one another, as they mostly do."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) and rows[-1] - rows[0] == len(rows) - 1 else rows


def _distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct numbers, ascending."""
    first, last = int(numbers.min()), int(numbers.max())
    if last - first > 4 * len(numbers):  # far apart: an agent may report any number
        return np.unique(numbers)
    seen = np.zeros(last - first + 1, dtype=bool)
    seen[numbers - first] = True
    return np.flatnonzero(seen) + first
