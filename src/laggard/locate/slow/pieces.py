"""Cuts what ranks do in a step into pieces: their phases, and their work between one collective and the next. Pure.

A pause falls into one piece, whose ordinary noise is a fraction of that of the whole step: there it stands out where
the step as a whole would hide it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.collectives import Collectives, waits
from laggard.locate.job_timings import Floats
from laggard.locate.medians import MAD_TO_SIGMA, deviations, last_axis_median
from laggard.locate.slow.steps import Steps

MAX_STEPS = 1 << 21
"""The most steps of ranks that are looked at piece by piece, as 128 steps of 16,384 ranks: with more, a verdict would
take twice as long."""

MAX_COMPARED = 64
MAX_VALUES = 1 << 23
"""The most pieces of work between collectives that are looked at: 64 MiB."""


class Piece(NamedTuple):
    """A piece of a step. `excess` [S, R]: by how much longer than its peers each rank took for it, in seconds, nan
    where that is not known. `noise` [R]: the standard deviation over time that this has among the rank's peers."""

    excess: Floats
    noise: Floats


def pieces(steps: Steps, collectives: Collectives | None, least: float) -> Iterator[Piece]:
    """The pieces of a step; those in which no rank ever takes `least` seconds longer than a peer are left out. None
    where there are too many ranks and steps."""
    if steps.busy.size > MAX_STEPS:
        return
    for seconds in (*_phases(steps), *_between_collectives(steps, collectives)):
        if np.nanmax(seconds, initial=0.0) > least and _differs(steps, seconds, least):
            yield _piece(steps, seconds)


def _differs(steps: Steps, seconds: Floats, least: float) -> bool:
    for columns in steps.peers.classes:
        some = seconds[:, columns]  # [S, K, M]
        apart = np.fmax.reduce(some, axis=2) - np.fmin.reduce(some, axis=2)
        if (apart > least).any():
            return True
    return False


def _piece(steps: Steps, seconds: Floats) -> Piece:
    """A rank of a large class is compared with some of it: a verdict on ten thousand ranks is drawn again and again."""
    excess, noise = np.full(seconds.shape, np.nan, seconds.dtype), np.zeros(seconds.shape[1])
    small = steps.peers.sizes <= MAX_COMPARED
    if small.any():
        excess = seconds - steps.peers.medians(seconds, of=small)
    for columns in steps.peers.classes:
        some = columns[:, :: max(1, columns.shape[1] // MAX_COMPARED)]
        if columns.shape[1] > MAX_COMPARED:
            for members, compared in zip(columns, some, strict=True):
                own = _as_slice(members)
                excess[:, own] = seconds[:, own] - last_axis_median(seconds[:, compared])[:, None]
        single = deviations(excess[:, some.reshape(-1)]).reshape(some.shape)
        noise[columns] = MAD_TO_SIGMA * last_axis_median(single)[:, None]
    return Piece(excess, noise)


def _as_slice(columns: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """`columns` [M], ascending; as a slice where they are neighbours, for which nothing is copied."""
    neighbours = columns[-1] - columns[0] == len(columns) - 1
    return slice(int(columns[0]), int(columns[-1]) + 1) if neighbours else columns


def _phases(steps: Steps) -> Iterator[Floats]:
    if steps.phased:
        yield from (steps.phases[:, :, phase] for phase in steps.judged_phases)


def _between_collectives(steps: Steps, collectives: Collectives | None) -> Floats:
    """[K, S, R]: the work before each of the K collectives of a rank's step, in the order in which it began them, since
    it began the one before; nan in steps that have another number of them than most steps of the rank's peers."""
    shape = len(steps.numbers), steps.busy.shape[1]
    if collectives is None:
        return np.zeros((0, *shape))
    rows, work = _work(collectives)
    row = np.minimum(np.searchsorted(steps.numbers, collectives.step[rows]), shape[0] - 1)
    known = steps.numbers[row] == collectives.step[rows]
    cell, work = (row * shape[1] + collectives.column[rows])[known], work[known]
    count = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    usual = steps.peers.medians(np.where(count > 0, count, np.nan))
    most = int(np.nanmax(usual, initial=0.0))
    if not 0 < most * shape[0] * shape[1] <= MAX_VALUES:
        return np.zeros((0, *shape))
    alike = (count == usual).reshape(-1)[cell]
    found = np.full((most, *shape), np.nan)
    found.reshape(most, -1)[_turn(cell)[alike], cell[alike]] = work[alike]
    return found


def _turn(cell: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of equal ones that stand before each of `cell` [N], where equal ones follow each other."""
    place = np.arange(len(cell))
    first = np.ones(len(cell), np.bool_)
    first[1:] = cell[1:] != cell[:-1]
    return place - np.maximum.accumulate(np.where(first, place, 0))


def _work(collectives: Collectives) -> tuple[NDArray[np.int64], Floats]:
    """The rows of the collectives that ended, by rank in the order of their begin; and before each of them the seconds
    since its rank began the one before, without those that it waited. nan for a rank's first."""
    rows = np.flatnonzero(np.isfinite(collectives.end) & (collectives.step >= 0))
    rows = rows[np.lexsort((collectives.peer[rows], collectives.op[rows], collectives.start[rows],
                            collectives.column[rows]))]  # fmt: skip
    work = np.full(len(rows), np.nan)
    bounds = np.flatnonzero(np.diff(collectives.column[rows], prepend=-1, append=-1)).tolist()
    for first, last in itertools.pairwise(bounds):
        own = rows[first:last]
        starts = collectives.start[own]
        waiting = waits(starts, collectives.end[own], collectives.waited[own])
        work[first + 1 : last] = np.maximum(np.diff(starts) - np.diff(waiting.until(starts)), 0.0)
    return rows, work
