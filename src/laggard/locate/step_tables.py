"""The steps of one rank as a table, and of many ranks as arrays by step and rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.locate.medians import distinct

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
    return distinct(np.concatenate([NO_STEPS, *one_of_each.values()])[:, STEP].astype(np.int64))


def step_arrays(tables: Sequence[Table]) -> StepArrays:
    """The steps of ranks with these tables, each ascending by step."""
    steps = distinct_steps(tables)
    shape = (len(steps), len(tables))
    # Each phase is an array of its own in memory: phases are looked at one by one.
    phases = np.full((len(PHASES), *shape), np.nan).transpose(1, 2, 0)
    seconds, waited, work = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, np.nan, np.float32)
    begin = 0
    for block in _blocks(tables):
        columns, begin = slice(begin, begin + len(block)), begin + len(block)
        rows = _rows(np.searchsorted(steps, block[0, :, STEP]))
        by_step = block.transpose(1, 0, 2)
        seconds[rows, columns] = by_step[:, :, END] - by_step[:, :, START]
        phases[rows, columns] = by_step[:, :, FIRST_PHASE:]
        waited[rows, columns] = by_step[:, :, WAITED]
        work[rows, columns] = by_step[:, :, WORK]
    return StepArrays(steps, seconds, phases, waited, work)


def over_phases(seconds: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """[S, R]: the sum of `seconds` [S, R, P], added up phase by phase, so that it is the same to the bit whatever the
    order in memory."""
    total: NDArray[np.floating[Any]] = np.zeros(seconds.shape[:2], seconds.dtype)
    for phase in range(seconds.shape[2]):
        total += seconds[:, :, phase]
    return total


def _blocks(tables: Sequence[Table]) -> Iterator[NDArray[np.float64]]:
    """The tables one after the other, those of neighbours with the same steps together: [ranks, steps, columns]."""
    for _, neighbours in groupby(tables, _ends):
        several = list(neighbours)
        for first in range(0, len(several), BLOCK_RANKS):
            block = np.stack(several[first : first + BLOCK_RANKS])
            if (block[:, :, STEP] == block[0, :, STEP]).all():
                yield block
            else:  # there are gaps within
                yield from block[:, np.newaxis]


def _ends(table: Table) -> tuple[int, Any, Any]:
    return (len(table), table[0, STEP], table[-1, STEP]) if len(table) else (0, None, None)


def _rows(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """The same rows, as a slice where they follow one another, as they mostly do."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) and rows[-1] - rows[0] == len(rows) - 1 else rows
