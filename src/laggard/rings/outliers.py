"""The times that are too long among several, by the times themselves. Pure.

The centre is the lower median: it is right while fewer than half are slow, and also where exactly half are, since a
fault makes nothing faster. The limit is four robust standard deviations (1.4826 times the median absolute deviation of
the logarithms, which is the standard deviation of a normal distribution), and at least what the active probes call
slow: what differs less is no fault, however exactly it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from laggard.probes.active.measuring.rates import ActiveThresholds

K = TypeVar("K")

MIN_MEASURED: Final = 3
"""The least number of times: of fewer, none can be said to be the odd one."""
DEVIATIONS: Final = 4.0
_MAD_TO_SIGMA: Final = 1.4826
MIN_RATIO: Final = 1 / ActiveThresholds().slow_ratio
"""The least that a time is longer than the usual one where it is too long."""


class Centre(NamedTuple):
    """The usual: the typical time, and the time from which on one is too long."""

    seconds: float
    limit: float


def centre_of(seconds: Iterable[float], deviations: float = DEVIATIONS) -> Centre | None:
    """Returns None where there are too few finite times. `deviations`: of the limit; fewer where more evidence than
    one time follows."""
    logs = sorted(math.log(value) for value in seconds if 0 < value < math.inf)
    if len(logs) < MIN_MEASURED:
        return None
    middle = _lower_median(logs)
    sigma = _MAD_TO_SIGMA * _lower_median(sorted(abs(value - middle) for value in logs))
    return Centre(math.exp(middle), math.exp(middle + max(math.log(MIN_RATIO), deviations * sigma)))


def slow_outliers(seconds: Mapping[K, float]) -> dict[K, float]:
    """Returns whose time is too long, with how many times as long as the typical one it is."""
    centre = centre_of(seconds.values())
    if centre is None:
        return {}
    return {key: value / centre.seconds for key, value in seconds.items() if value > centre.limit}


def _lower_median(ordered: list[float]) -> float:
    return ordered[(len(ordered) - 1) // 2]
