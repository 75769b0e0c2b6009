"""The time that a part of a step takes in a run, and by how much that may be wrong. Pure.

Successive steps are not independent: what else runs on a machine slows many in a row. So a run is cut into blocks of
steps that follow one another, and the blocks count as the observations (batch means: Schmeiser, Batch size effects in
the analysis of simulation output, Operations Research 30, 1982, who finds 10 to 30 of them enough). Others on a machine
make steps longer and never shorter, so that a block's value is the lower quartile of its steps. Of the blocks a fifth
is trimmed at each end, with the standard error of Yuen (The two-sample trimmed t for unequal population variances,
Biometrika 61, 1974). Where neighbouring blocks still go together, the variance grows as that of a first-order
autoregression, by (1 + r) / (1 - r) for their correlation r (Law, Simulation Modeling and Analysis).

Two runs of one program differ by more than that: each has one placement of its memory, its own neighbours and one
temperature. RUN_SHARE of the spread between a run's own blocks is taken for that: a run whose speed changes while it
runs says of itself that the next one may be as different.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats
from laggard.wire.digest import Estimate

MIN_STEPS: Final = 16
"""The least number of steps after the warm-up: eight blocks of two."""

MAX_BLOCKS: Final = 10
QUANTILE: Final = 0.25
TRIMMED: Final = 0.2

RUN_SHARE: Final = 0.5
"""The share of the blocks' standard deviation that is taken for the difference of one run from the next. Our own
choice, by pairs of runs without a change on two cores that others use, too, as tests/locate/against makes them."""

MAX_CORRELATION: Final = 0.8

EVEN_RATIO: Final = 1.34
"""The ratio of the longest distance between two to the shortest up to which something comes at even distances."""

EDGE_ERROR: Final = 0.5
"""The standard deviation, at most, of how often something regular and rare comes within a window of steps."""


def usual_seconds(series: Floats) -> Estimate:
    """What a part that every step has takes, in seconds a step; `series` [S] ascends by step, nan is not known."""
    return _of_blocks(np.array([_lower_quartile(block) for block in _blocks(series)]))


def mean_seconds(series: Floats) -> Estimate:
    """The same for what may be in one step and not in the next, as waiting for a data loader: the mean."""
    return _of_blocks(np.array([block.mean() for block in _blocks(series)]))


def rare_seconds(series: Floats) -> Estimate:
    """What few steps have takes, such as a checkpoint, in seconds a step on average of all. Where it comes at even
    distances, a window has one more or less of it; where it does not, they come as in a compound Poisson process, of
    which the sum of the squares is the variance of the sum; where they come in clusters, as much as blocks of steps
    differ by may be the next run's."""
    known = series[np.isfinite(series)]
    at = np.flatnonzero(known > 0)
    if not len(at):
        return Estimate(0.0, 0.0)
    there = known[at]
    if _is_even(at):
        spread = float(there.std()) / math.sqrt(len(at)) * len(at) / len(known)
        error = math.hypot(spread, EDGE_ERROR * float(there.mean()) / len(known))
    else:
        by_chance = math.sqrt(float((there**2).sum())) / len(known)
        error = math.hypot(by_chance, float(np.std([block.mean() for block in _blocks(known)])))
    return Estimate(float(known.mean()), error)


def beyond_usual(series: Floats, least: float) -> Floats:
    """[S]: what each of `series` is beyond the usual, where that is twice as much and `least` seconds more; else 0."""
    known = series[np.isfinite(series)]
    usual = _lower_quartile(known) if len(known) else 0.0
    excess: Floats = np.where(series - usual > max(usual, least), series - usual, 0.0)
    return np.where(np.isfinite(series), excess, np.nan)


def _lower_quartile(values: Floats) -> float:
    """What np.quantile() gives for QUANTILE, to the bit, in a tenth of its time: a digest takes thousands of them.
    `values` [N], at least one, without nan."""
    ordered = np.sort(values)
    place = QUANTILE * (len(ordered) - 1)
    at = int(place)
    low, high = ordered[at], ordered[min(at + 1, len(ordered) - 1)]
    weight, apart = place - at, high - low
    return float(low + apart * weight if weight < 0.5 else high - apart * (1 - weight))


def _is_even(at: NDArray[np.int64]) -> bool:
    gaps = np.diff(at)
    return len(gaps) > 1 and int(gaps.max()) <= EVEN_RATIO * int(gaps.min())


def _blocks(series: Floats) -> list[Floats]:
    """The blocks of steps that follow one another; one of a zero where nothing is known."""
    known = series[np.isfinite(series)].astype(np.float64)
    if not len(known):
        return [np.zeros(1)]
    return np.array_split(known, max(1, min(MAX_BLOCKS, len(known) // 2)))


def _of_blocks(values: Floats) -> Estimate:
    """The trimmed mean of `values` [B], in the order of time, and its error with what the next run may differ by."""
    count = len(values)
    if count < 2:
        return Estimate(float(values[0]), float("inf"))
    cut = int(TRIMMED * count)
    ordered = np.sort(values)
    inner = np.clip(values, ordered[cut], ordered[count - cut - 1])
    variance = float(inner.var(ddof=1)) / (1 - 2 * cut / count) ** 2
    correlation = min(max(_lag_one(inner), 0.0), MAX_CORRELATION)
    of_mean = variance / count * (1 + correlation) / (1 - correlation)
    return Estimate(float(ordered[cut : count - cut].mean()), math.sqrt(of_mean + RUN_SHARE**2 * variance))


def _lag_one(values: Floats) -> float:
    """The correlation of each value with the next; 0.0 where they are all alike."""
    centred = values - values.mean()
    whole = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / whole if whole > 0 else 0.0
