"""The interval of a figure of the ledger. Pure.

A loss has three readings: the least, the likely and the most. They come apart for five reasons:

- The verdict's share of the step time is an estimate. SHARE_ERROR is how far it was from the truth in 19 of 20 cases of
  the simulator (`bench/cost.py --shares`).
- A verdict looks back: a fault begins up to its window before it is first named, and is named up to that long after.
- A verdict leaves a culprit out for a while, or nobody looked, and it is named again: it was likely there all the time,
  as one fault is one incident, and at least it was not (`doubtful_seconds`).
- A rank that hangs stood still between the job's last progress and the first verdict that named it.
- Some slow faults no verdict names: MISSED_RATIO of the simulator's. Who found n of them has, by the negative binomial
  distribution, missed n * m / (1 - m), with the variance n * m / (1 - m)^2; each is taken to be like those that were
  named. That is in the most alone.

The errors of several faults are independent, so they add as squares; those of one fault, named again and again in the
same job, are one error.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

from msgspec import Struct

SHARE_ERROR: Final = 0.05
"""The part of the step time by which a share is off at most, in 19 of 20 cases."""

SHARE_ERROR_RATIO: Final = 0.25
"""The same as a part of the share itself; the larger of the two holds."""


MISSED_RATIO: Final = 0.05
"""The part of slow faults that no verdict names: 7 of 140 cases that take 2 to 50 % of the step time
(`bench/cost.py --shares --seed 1`)."""


class Amount(Struct, frozen=True):
    """GPU-hours (or money) lost: the likely figure, and between what it is in 19 of 20 cases."""

    likely: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def times(self, factor: float) -> Amount:
        return Amount(self.likely * factor, self.least * factor, self.most * factor)


class Reading(NamedTuple):
    """One loss, in seconds or in GPU-hours. `error`: losses with the same one are off together. `may_be_missed`:
    whether others like it may have been there that nobody saw, as of a slow rank and not of one that died."""

    likely: float
    least: float
    most: float
    error: Hashable
    may_be_missed: bool = False


def share_error(share: float) -> float:
    """The error that a share of the step time may have, as a part of the step time."""
    return max(SHARE_ERROR, SHARE_ERROR_RATIO * share)


def added(readings: Iterable[Reading]) -> Amount:
    """The sum of several losses."""
    likely, missed = 0.0, 0.0
    below: dict[Hashable, float] = {}
    above: dict[Hashable, float] = {}
    seen: dict[Hashable, float] = {}
    for it in readings:
        likely += it.likely
        below[it.error] = below.get(it.error, 0.0) + max(0.0, it.likely - it.least)
        above[it.error] = above.get(it.error, 0.0) + max(0.0, it.most - it.likely)
        if it.may_be_missed:
            seen[it.error] = seen.get(it.error, 0.0) + it.likely
            missed += it.likely * MISSED_RATIO / (1 - MISSED_RATIO)
    doubled = 2 * math.sqrt(MISSED_RATIO) / (1 - MISSED_RATIO)  # two standard deviations
    down, up = _squared(below.values()), _squared((*above.values(), *(doubled * part for part in seen.values())))
    return Amount(likely, max(0.0, likely - down), likely + missed + up)


def _squared(parts: Iterable[float]) -> float:
    return math.sqrt(sum(part * part for part in parts))
