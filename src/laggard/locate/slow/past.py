"""Compares ranks that nobody does the work of, the stages of a single pipeline, with what they were themselves. Pure.

A stage may have more layers than another, so that the times of stages tell nothing of their machines. What it has is
the same from step to step: a stage that takes longer than it did, while the others do not, is on a machine that has
become slower. One that was slow from the first step that is seen is not told from one with more layers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.locate.job_timings import Floats
from laggard.locate.slow.medians import (
    MEDIAN_ERROR,
    deviations,
    median_over_steps,
    others_median,
)

MIN_FIRST_STEPS: Final = 8
"""The least number of first steps with which a rank is compared."""

CHANGED_RATIO: Final = 0.05
"""The least change of a stage, in step times. Twice what is asked of a rank with peers: a stage changes by itself, too,
as when a cache of its data grows."""

OTHER: Final = PHASES.index("other")


class Past(NamedTuple):
    """The first steps of the ranks whose work nobody else does. `first` [K, R, P]: their own time by phase, nan of
    others, None where there are none. `alone` [R]: the ranks that are known so. `base` [R]: their busy seconds a step,
    and `error` [R]: by how much these may be wrong, as a median absolute deviation; nan of others."""

    first: Floats | None
    alone: NDArray[np.bool_]
    base: Floats
    error: Floats

    @classmethod
    def of(cls, first: Floats | None, count: int, phased: bool) -> Past:
        """`count`: R. `phased`: whether phases are named, so that the time in none of them is not judged."""
        if first is None:
            nobody = np.full(count, np.nan)
            return cls(None, np.zeros(count, np.bool_), nobody, nobody)
        busy = judged(first, phased)
        known = np.isfinite(busy).sum(axis=0)
        error = MEDIAN_ERROR * deviations(busy) / np.sqrt(np.maximum(known, 1))
        alone = known >= MIN_FIRST_STEPS
        return cls(first, alone, np.where(alone, median_over_steps(busy), np.nan), np.where(alone, error, np.nan))

    def excess(self, busy: Floats) -> Floats:
        """[S, R]: by how much each rank is busier (`busy` [S, R], seconds) than in its first steps, beyond the share by
        which the others are, as with longer sequences for all; nan of ranks that have peers."""
        if not self.alone.any():
            return np.full(busy.shape, np.nan)
        grown = busy / np.where(self.base > 0, self.base, np.nan)
        return busy - self.base * others_median(grown)


def judged(phases: Floats, phased: bool) -> Floats:
    """[S, R]: the sum of `phases` [S, R, P] that are judged."""
    total: Floats = phases[:, :, : OTHER if phased else None].sum(axis=2)
    return total
