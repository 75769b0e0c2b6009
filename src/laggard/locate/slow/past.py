"""Compares ranks that nobody does the work of, the stages of a single pipeline, with what they were themselves. Pure.

A stage may have more layers than another, so that the times of stages tell nothing of their machines. What it has is
the same from step to step: a stage that takes longer than it did, while the others do not, is on a machine that has
become slower. One that was slow from the first step that is seen is not told from one with more layers, unless one of
its passes alone is: more layers make both passes longer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.locate.job_timings import Floats
from laggard.locate.medians import (
    MEDIAN_ERROR,
    deviations,
    median_over_steps,
    others_median,
)
from laggard.locate.step_tables import over_phases

MIN_FIRST_STEPS: Final = 8
"""The least number of first steps with which a rank is compared."""

CHANGED_RATIO: Final = 0.05
"""The least change of a stage, in step times. Twice what is asked of a rank with peers: a stage changes by itself, too,
as when a cache of its data grows."""

OUT_OF_PROPORTION: Final = 3.0
"""Times the other stages' from which on a pass is out of proportion to the stage's other pass, if it is also so many
times as long as theirs. Activation checkpointing of one stage makes its backward pass half as long again."""

USUAL_PASS: Final = 0.5
"""The least length of the other pass beside the other stages', and of their backward passes beside their forward
passes: frozen layers have next to no backward pass, and tell nothing of proportions."""

MIN_STAGES: Final = 3
"""With fewer stages that are judged there is no usual proportion."""

FORWARD, BACKWARD, OTHER = map(PHASES.index, ("forward", "backward", "other"))


class Past(NamedTuple):
    """The first steps of the ranks whose work nobody else does. `first` [K, R, P]: their own time by phase, nan of
    others, None where there are none. `alone` [R]: the ranks that are known so. `base` [R]: their busy seconds a step,
    and `error` [R]: by how much these may be wrong, as a median absolute deviation; nan of others. `proportioned` [R]:
    the phase, forward or backward, whose first steps are not what they were but what the other pass and the other
    stages tell; -1 of all others."""

    first: Floats | None
    alone: NDArray[np.bool_]
    base: Floats
    error: Floats
    proportioned: NDArray[np.int64]

    @classmethod
    def of(cls, first: Floats | None, count: int, phased: bool) -> Past:
        """`count`: R. `phased`: whether phases are named, so that the time in none of them is not judged."""
        if first is None:
            nobody = np.full(count, np.nan)
            return cls(None, np.zeros(count, np.bool_), nobody, nobody, np.full(count, -1))
        first, proportioned = in_proportion(first)
        busy = judged(first, phased)
        known = np.isfinite(busy).sum(axis=0)
        error = MEDIAN_ERROR * deviations(busy) / np.sqrt(np.maximum(known, 1))
        alone = known >= MIN_FIRST_STEPS
        base = np.where(alone, median_over_steps(busy), np.nan)
        return cls(first, alone, base, np.where(alone, error, np.nan), proportioned)

    def excess(self, busy: Floats) -> Floats:
        """[S, R]: by how much each rank is busier (`busy` [S, R], seconds) than in its first steps, beyond the share by
        which the others are, as with longer sequences for all; nan of ranks that have peers. Where the others became
        less busy on the whole, as ranks on the same CPUs do that wait longer, one that stays as it was is no slower."""
        if not self.alone.any():
            return np.full(busy.shape, np.nan)
        grown = others_median(busy / np.where(self.base > 0, self.base, np.nan))
        return busy - self.base * grown / np.fmin(median_over_steps(grown), 1.0)


def in_proportion(first: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Scales one pass of a stage, where it is out of all proportion to the other pass, to what that pass and the other
    stages tell. Returns `first` [K, R, P] so, and which phase that was of each rank [R]; -1: none."""
    none = np.full(first.shape[1], -1)
    passes = np.stack([median_over_steps(first[:, :, phase]) for phase in (FORWARD, BACKWARD)])
    if (np.isfinite(passes) & (passes > 0)).all(axis=0).sum() < MIN_STAGES:
        return first, none
    usual = others_median(passes)
    found, scaled = none.copy(), first.copy()
    for phase, own, other in ((FORWARD, 0, 1), (BACKWARD, 1, 0)):
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = passes[other] * others_median(passes[own] / passes[other])
            longest = np.minimum(passes[own] / usual[own], passes[own] / expected) > OUT_OF_PROPORTION
        told = (passes[other] > USUAL_PASS * usual[other]) & (usual[1] > USUAL_PASS * usual[0])
        columns = np.flatnonzero(longest & told)
        found[columns] = phase
        scaled[:, columns, phase] *= (expected / passes[own])[columns]
    return scaled, found


def judged(phases: Floats, phased: bool) -> Floats:
    """[S, R]: the sum of `phases` [S, R, P] that are judged."""
    return over_phases(phases[:, :, : OTHER if phased else None])
