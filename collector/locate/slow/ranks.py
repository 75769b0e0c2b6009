"""Which ranks are slower than their peers, since when and by how much. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.slow.peers import Floats, blocks
from laggard.collector.locate.slow.steps import MIN_STEPS, Steps

SLOW_RATIO = 0.08  # of the step time: below it lies what healthy ranks differ by
PERSISTENT_SHARE = 0.8  # of the steps since it began
SPREADS = 4.0  # times the spread among the peers' own medians

BRIEF_SECONDS = 1.0
"""A machine's own work (a scrape, a probe, another process on a rank's core) holds a rank up for a moment; what makes a
rank slow stays. Our own choice: two ranks with steps of 13 ms on two cores, beside other work, showed 0.1 to 0.9 s."""

BRIEF_STEPS = 100
"""So many slow steps are no moment, however short they are."""


@dataclasses.dataclass(frozen=True)
class Slow:
    """A rank that is slow from step index `since` of the window on."""

    column: int
    since: int
    excess: float  # seconds a step
    share: float  # of the steps since then in which it was slow
    steps: int  # from then on
    seconds: float  # they took

    @property
    def brief(self) -> bool:
        """Too short a time to tell a slow rank from one whose machine had something else to do."""
        return self.seconds < BRIEF_SECONDS and self.steps < BRIEF_STEPS


def slow_ranks(steps: Steps) -> list[Slow]:
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
                found.append(Slow(column, first, typical, float(share[place]), len(lasted), float(lasted.sum())))
    found = [each for each in found if each.excess > SPREADS * steps.peers(each.since).spread(each.column)]
    return sorted(found, key=lambda each: -each.excess)


def _onset(slow: NDArray[np.bool_], seen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Floats]:
    """For each rank the first step from which on it was slow in PERSISTENT_SHARE of the steps in which it was seen,
    and in how many; -1 where there is none that leaves MIN_STEPS."""
    lengths = seen[::-1].cumsum(axis=0, dtype=np.int32)[::-1]
    share = slow[::-1].cumsum(axis=0, dtype=np.int32)[::-1] / np.maximum(lengths, 1)
    possible = slow & (share >= PERSISTENT_SHARE) & (lengths >= MIN_STEPS)
    first = possible.argmax(axis=0)
    columns = np.arange(slow.shape[1])
    return np.where(possible[first, columns], first, -1), share[first, columns]
