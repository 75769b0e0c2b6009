"""Decides which ranks are slower than their peers, since when and by how much. Pure.

A rank is slow where its busy time exceeds the median of its peers in the same step by SLOW_RATIO of the step time, in
PERSISTENT_SHARE of the steps since its onset and up to the window's end, and by more than SPREADS times what the peers
differ by among themselves.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.job_timings import Floats
from laggard.collector.locate.slow.peers import blocks
from laggard.collector.locate.slow.steps import MIN_STEPS, Steps

SLOW_RATIO = 0.08  # of the step time: healthy ranks differ by less
PERSISTENT_SHARE = 0.8  # of the steps since the onset
SPREADS = 4.0  # times the spread among the peers' own medians

BRIEF_SECONDS = 1.0
"""A machine's own work (a scrape, a probe, another process on a rank's core) holds a rank up for a moment; what makes a
rank slow stays. Our own choice: two ranks with steps of 13 ms on two cores, beside other work, showed 0.1 to 0.9 s."""

BRIEF_STEPS = 100
"""From so many slow steps on a rank is not slow for a moment only, however short the steps are."""


@dataclasses.dataclass(frozen=True)
class SlowRank:
    """A rank that is slow from step index `since` of the window on."""

    column: int
    since: int
    excess: float  # seconds a step
    share: float  # of the steps since then in which it was slow
    steps: int  # since then
    seconds: float  # that these steps took

    @property
    def brief(self) -> bool:
        """Whether it has been slow for too short a time: its machine may just have had something else to do."""
        return self.seconds < BRIEF_SECONDS and self.steps < BRIEF_STEPS


def slow_ranks(steps: Steps) -> list[SlowRank]:
    """The ranks that are slow up to the window's end, the slowest first."""
    found = []
    for block in blocks(steps.busy.shape[1]):
        excess = steps.excess(block)
        since, share = _onset(excess > SLOW_RATIO * steps.duration[:, None], np.isfinite(excess))
        for place in np.flatnonzero(since >= 0):
            first = int(since[place])
            typical = float(np.nanmedian(excess[first:, place]))
            if typical > SLOW_RATIO * np.median(steps.duration[first:]):
                lasted = steps.duration[first:]
                column = block.start + int(place)
                found.append(SlowRank(column, first, typical, float(share[place]), len(lasted), float(lasted.sum())))
    found = [rank for rank in found if rank.excess > SPREADS * steps.peers(rank.since).spread(rank.column)]
    return sorted(found, key=lambda rank: -rank.excess)


def _onset(slow: NDArray[np.bool_], known: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Floats]:
    """[R]: for each rank the first step since which it was slow in PERSISTENT_SHARE of the steps for which it has a
    row, -1 where no such step leaves MIN_STEPS; and [R]: the share of those steps. `slow`, `known`: [S, R]."""
    lengths = known[::-1].cumsum(axis=0, dtype=np.int32)[::-1]
    share = slow[::-1].cumsum(axis=0, dtype=np.int32)[::-1] / np.maximum(lengths, 1)
    possible = slow & (share >= PERSISTENT_SHARE) & (lengths >= MIN_STEPS)
    first = possible.argmax(axis=0)
    columns = np.arange(slow.shape[1])
    return np.where(possible[first, columns], first, -1), share[first, columns]
