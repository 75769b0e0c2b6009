"""One rank's steps in a recording: own time by phase and time waited, from step, span and collective records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.locate.intervals import Intervals, waits
from laggard.recording.columns import OTHER, Table

Times = NDArray[np.float64]


class RankSteps(NamedTuple):
    """S steps of one rank, ascending by number. Times in seconds. `sparse`: whether their bounds are those of its
    spans and collectives, since it has no step records."""

    numbers: NDArray[np.int64]  # [S]
    starts: Times  # [S]: on the rank's own clock
    seconds: Times  # [S]
    phases: Times  # [S, len(PHASES)]: own time
    waited: Times  # [S]: in collectives
    work: Times  # [S]: elements of the model's inputs, 0 where they were not seen
    sparse: bool


def rank_steps(steps: Table, spans: Table, collectives: Table, own: Sequence[tuple[float, ...]]) -> RankSteps:
    """The steps of one rank from its records. `own` has the own times of steps that carry them."""
    sparse = not len(steps["step"])
    numbers, starts, ends = _gapless_bounds(spans, collectives) if sparse else _bounds(steps)
    waiting = waits(collectives["start"], collectives["end"], collectives["waited"])
    waited = waiting.within(starts, ends)
    phases = _phases(numbers, spans, waiting)
    phases[:, OTHER] += np.maximum(ends - starts - waited - phases.sum(axis=1), 0.0)
    if not sparse:
        place = np.searchsorted(numbers, steps["step"])
        for row in np.flatnonzero(steps["own"] >= 0):
            *phases[place[row]], waited[place[row]] = own[steps["own"][row]]
    work = np.zeros(len(numbers)) if sparse else steps["work"][np.unique(steps["step"], return_index=True)[1]]
    return RankSteps(numbers, starts, ends - starts, phases, waited, work, sparse)


def _bounds(steps: Table) -> tuple[NDArray[np.int64], Times, Times]:
    """The bounds of the rank's steps. A step without a record is left out where the rank has step records: it holds the
    collectives of a step that was broken off."""
    numbers, first = np.unique(steps["step"], return_index=True)
    return numbers, steps["start"][first], steps["end"][first]


def _gapless_bounds(spans: Table, collectives: Table) -> tuple[NDArray[np.int64], Times, Times]:
    """A step begins where the one before it ended: the work before a step's first collective belongs to it. Without a
    step before it, its beginning is not known, and it is left out."""
    finished = np.isfinite(collectives["end"]) & (collectives["step"] >= 0)
    step = np.concatenate((spans["step"], collectives["step"][finished]))
    end = np.concatenate((spans["end"], collectives["end"][finished]))
    numbers, place = np.unique(step, return_inverse=True)
    latest = np.full(len(numbers), -np.inf)
    np.maximum.at(latest, place, end)
    follows = np.flatnonzero((np.diff(numbers) == 1) & (np.diff(latest) > 0))
    return numbers[follows + 1], latest[follows], latest[follows + 1]


def _phases(numbers: NDArray[np.int64], spans: Table, waiting: Intervals) -> Times:
    """[S, P]: the time of each step in spans of each phase, without the part of it that the rank waited."""
    count = len(PHASES)
    if not len(numbers) or not len(spans["step"]):
        return np.zeros((len(numbers), count))
    place = np.minimum(np.searchsorted(numbers, spans["step"]), len(numbers) - 1)
    known = numbers[place] == spans["step"]
    seconds = spans["end"] - spans["start"] - waiting.within(spans["start"], spans["end"])
    cells = (place * count + spans["phase"])[known]
    found: Times = np.bincount(cells, seconds[known], len(numbers) * count).astype(np.float64)
    return found.reshape(len(numbers), count)
