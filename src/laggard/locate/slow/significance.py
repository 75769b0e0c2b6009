"""Decides whether a rank or machine is slower than its peers, since when and by how much. Pure.

Its excess is how much longer than its peers it was busy, step by step. It is slow where the median of its excess over
the last steps is above each of

- SLOW_RATIO of the step time: healthy GPUs of one kind differ by less than half a percent at equal work, and what is
  below costs less than looking for it;
- STANDARD_ERRORS of that median (1.2533 standard deviations over the root of the independent steps, for normal data),
  so that noise does not accuse, and small slowdowns are found as the steps allow. What disturbs a machine lasts: where
  neighbouring steps are alike, fewer of them are independent (_alike). And where the standard deviation is
  known from few values itself, it takes more of them (student()). Noise comes on top of what healthy ranks differ
  by: half of SLOW_RATIO and four fifths of these standard errors are exceeded, too;
- SPREADS times the median absolute deviation of its peers' own medians, so that who is within what the peers differ by
  is not accused: four standard deviations, which one of 64 equal ranks exceeds in one job of 500.

Its own standard deviation counts against it, unless its excess is above the other thresholds, and above STANDARD_ERRORS
standard deviations of what its peers vary by, in so many steps that chance (PAUSED_SHARE of them) leaves CHANCE or
less: what comes in most steps is no noise, however much it varies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from laggard.locate.job_timings import Floats
from laggard.locate.medians import (
    MAD_TO_SIGMA,
    MEDIAN_ERROR,
    deviation,
    deviations,
    median,
    median_over_steps,
    middle,
)
from laggard.locate.slow.steps import MIN_STEPS

SLOW_RATIO = 0.025
STANDARD_ERRORS = 5.0
SPREADS = 6.0

HEALTHY_NOISE_RATIO = 0.8
"""A healthy rank may itself be half of SLOW_RATIO slower, three standard deviations of what GPUs differ by; an excess
beyond that takes four standard errors of noise in place of five."""

PAUSED_SHARE = 0.25
"""The largest share of its steps in which a healthy rank is taken to be as much longer than its peers by chance."""

CHANCE = 0.001
"""The probability of so many steps above the threshold, if PAUSED_SHARE are so by chance: eight of ten, 12 of 20."""
MIN_KNOWN = 5
"""The least number of steps, of MIN_STEPS or more, that the records of a rank are not lost of."""

MAX_SERIES = 64
MIN_ONSET_GAIN = 4
"""The number of additional steps that must fall on the right side of a change in the window for it to be the onset."""


class Slowdown(NamedTuple):
    """A series of excesses that is slow from index `since` to its end. `margin`: its excess over the threshold."""

    since: int
    excess: float  # seconds a step
    margin: float


def windows(steps: int) -> Iterator[int]:
    """The numbers of last steps that are looked at, the most first: all, half, a quarter, down to MIN_STEPS."""
    while steps >= MIN_STEPS:
        yield steps
        steps //= 2


def slowdown(
    excess: Floats, duration: Floats, others: Floats, spread: float, ratio: float = SLOW_RATIO
) -> Slowdown | None:
    """The slowdown of the series `excess` [S] (seconds, nan where unknown), of steps of `duration` [S], if it is slow
    up to now; else None. `others` [S, N] are the peers' own series: the standard deviation that these have about their
    levels is the least that this one is taken to have. `spread` is the median absolute deviation among the peers'
    medians, `ratio` the least excess, in step times."""
    for length in windows(len(excess)):
        last = excess[-length:]
        known = int(np.isfinite(last).sum())
        if known < MIN_KNOWN:
            return None
        typical = median(last)
        floor = max(ratio * middle(duration[-length:]), SPREADS * spread)
        if typical <= floor or median(excess[-MIN_STEPS:]) <= typical / 2:
            continue
        since = _onset(excess, typical)
        alike = _alike(_residual(excess, since))
        usual = _noise(others, since)
        sigma = max(usual, MAD_TO_SIGMA * deviation(last))
        errors = student(max(1, others.shape[1]) * len(excess) / alike - 1)
        noise = errors * MEDIAN_ERROR * sigma * (alike / known) ** 0.5
        healthy = ratio / 2 * middle(duration[-length:])
        threshold = max(floor, noise, healthy + HEALTHY_NOISE_RATIO * noise)
        least = max(floor, STANDARD_ERRORS * usual)
        if others.shape[1] and _in_most_steps(last, least):
            threshold = min(threshold, least)
        if typical > threshold:
            typical = median(excess[since:])
            return Slowdown(since, typical, typical / threshold)
    return None


def _in_most_steps(excess: Floats, least: float) -> bool:
    """Whether the series exceeds `least` in so many of its known steps that chance leaves no more than CHANCE."""
    known = int(np.isfinite(excess).sum())
    above = int((excess > least).sum())
    log_share, log_rest, whole = math.log(PAUSED_SHARE), math.log1p(-PAUSED_SHARE), math.lgamma(known + 1)
    chance = sum(  # by logarithms: recordings have thousands of steps
        math.exp(whole - math.lgamma(count + 1) - math.lgamma(rest + 1) + count * log_share + rest * log_rest)
        for count, rest in ((count, known - count) for count in range(above, known + 1))
    )
    return chance <= CHANCE


def _noise(others: Floats, since: int) -> float:
    """The standard deviation over time of the series `others` [S, N], the median over at most MAX_SERIES of them; 0.0
    without any. Each is taken about its median before step index `since`, and about that from there on: where there are
    few peers, their excess falls as the culprit's rises."""
    some = others[:, :: max(1, others.shape[1] // MAX_SERIES)]
    parts = [part - median_over_steps(part) for part in (some[:since], some[since:]) if len(part)]
    return float(np.nan_to_num(MAD_TO_SIGMA * median(deviations(np.concatenate(parts)))))


def _residual(excess: Floats, since: int) -> Floats:
    """`excess` [S] less its median before the onset and after it: what is noise if it is slow since then."""
    parts = (part - median(part) for part in (excess[:since], excess[since:]))
    residual: Floats = np.concatenate(list(parts))
    return residual


def _alike(residual: Floats) -> float:
    """The number of successive values of a series that count as one independent value for its median; 1.0 for white
    noise.

    That is 1 + 2 * the sum of the autocorrelations of its signs, as far as these exceed what white noise shows
    (Bartlett's bound) without interruption; they are added in pairs (Geyer, Practical Markov Chain Monte Carlo, 1992).
    """
    signs = np.nan_to_num(np.sign(residual))
    power = float((signs * signs).sum())
    if len(signs) < MIN_STEPS or power <= 0.0:
        return 1.0
    spectrum = np.abs(np.fft.rfft(signs, 2 * len(signs))) ** 2
    correlations = np.fft.irfft(spectrum)[: len(signs) // 4 + 1] / power
    bound = 2.0 / len(signs) ** 0.5
    total = 1.0
    for first in range(1, len(correlations) - 1, 2):
        pair = correlations[first : first + 2]
        if pair.mean() <= bound:
            break
        total += 2.0 * float(pair.sum())
    return total


def student(freedom: float) -> float:
    """STANDARD_ERRORS where the standard deviation is known; more where it was estimated with so many degrees of
    freedom: what Student's t exceeds as rarely (Wallace's approximation, Ann. Math. Statist. 30, 1959)."""
    freedom = max(freedom, 3.0)
    known = STANDARD_ERRORS * (8 * freedom + 3) / (8 * freedom + 1)
    return float((freedom * math.expm1(known * known / freedom)) ** 0.5)


def _onset(excess: Floats, typical: float) -> int:
    """The index from which on the excess is `typical` rather than zero: where the fewest steps are on the wrong side of
    the middle between the two."""
    slow = np.where(np.isfinite(excess), np.where(excess > typical / 2, 1, -1), 0)
    gained = np.concatenate(([0], np.cumsum(-slow)))[: len(excess) - MIN_STEPS + 1]
    best = int(gained.argmax())
    return best if gained[best] >= MIN_ONSET_GAIN else 0
