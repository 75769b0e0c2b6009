"""The statistics that tell whether one configuration is faster than another on a machine that is noisy and drifts.
Pure.

Times are compared by their logarithms, in pairs that ran one after the other: what makes the machine slower for minutes
makes both of a pair slower. Now and then something else runs on a machine for a moment: intervals are those of the
trimmed mean (Tukey and McLaughlin, 1963; a fifth off each end), 95 %, with fewer than six pairs Student's.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Final, NamedTuple

TIE: Final = 0.01
"""The share within which speeds are as fast as each other: training steps repeat no better."""
_STUDENT_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1 to 20 degrees of freedom; above, 2.086 is a little too wide."""


_MIN_TRIMMED: Final = 6
_TRIMMED: Final = 0.2
_NORMAL_MEDIAN: Final = 0.6745
"""The median of the absolute value of a standard normal variable."""


class Word(enum.Enum):
    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    """The two are as fast as each other, within what counts."""
    OPEN = "not told apart"
    """The two are not told apart: too few repeats for the noise."""


class Comparison(NamedTuple):
    """The new throughput over the old."""

    ratio: float
    low: float | None
    """None: fewer than two pairs."""
    high: float | None
    pairs: int
    word: Word


def compare(old_seconds: Sequence[float], new_seconds: Sequence[float], tie: float = TIE) -> Comparison:
    """Compares pairs of times, the first of each list ran beside each other, and so on. Without pairs: open."""
    logs = [math.log(old / new) for old, new in zip(old_seconds, new_seconds, strict=False)]
    if not logs:
        return Comparison(1.0, None, None, 0, Word.OPEN)
    middle = trimmed_mean(logs)
    half = half_width(logs)
    if half is None:
        return Comparison(math.exp(middle), None, None, len(logs), Word.OPEN)
    low, high = math.exp(middle - half), math.exp(middle + half)
    return Comparison(math.exp(middle), low, high, len(logs), _word(low, high, tie))


def _word(low: float, high: float, tie: float) -> Word:
    """A gain inside the tie is a tie, also where it is certain: nobody should change a setting for it."""
    if 1 / (1 + tie) <= low and high <= 1 + tie:
        return Word.TIE
    if low > 1:
        return Word.FASTER
    return Word.SLOWER if high < 1 else Word.OPEN


def half_width(values: Sequence[float]) -> float | None:
    """Returns half of the interval of the values' trimmed mean; None for fewer than two."""
    if len(values) < 2:
        return None
    cut = _cut(values)
    ordered = sorted(values)
    inner = ordered[cut : len(ordered) - cut]
    winsorised = [inner[0]] * cut + inner + [inner[-1]] * cut
    freedom = len(inner) - 1
    error = stdev(winsorised) / ((1 - 2 * cut / len(values)) * math.sqrt(len(values)))
    return _STUDENT_95[min(freedom, len(_STUDENT_95)) - 1] * error


def trimmed_mean(values: Sequence[float]) -> float:
    cut = _cut(values)
    return fmean(sorted(values)[cut : len(values) - cut])


def _cut(values: Sequence[float]) -> int:
    """Returns how many values are left out at each end."""
    return 0 if len(values) < _MIN_TRIMMED else int(_TRIMMED * len(values))


def without_spikes(logs: Sequence[float], noise: float) -> list[float]:
    """Returns the times without those that something else on the machine made longer: more than five times the noise,
    and a tenth, above the shortest."""
    limit = min(logs) + max(5 * noise, math.log(1.1))
    return [each for each in logs if each <= limit]


def noise_of(repeats: Sequence[Sequence[float]]) -> float | None:
    """Returns the standard deviation of a time's logarithm, from configurations that were measured several times. By
    the median of the differences between repeats, which a few spikes do not move."""
    differences = [
        abs(one - other)
        for times in repeats
        for one, other in itertools.combinations([math.log(each) for each in times], 2)
    ]
    return median(differences) / (_NORMAL_MEDIAN * math.sqrt(2)) if differences else None


class Drift(NamedTuple):
    """The change of the machine while the campaign ran, by the repeats of the default."""

    ratio: float
    """The default's time late over early."""
    repeats: int


_MIN_REPEATS: Final = 6
_DRIFT: Final = 0.03


def drift_of(default_seconds: Sequence[float]) -> Drift | None:
    """Returns the drift where the default's repeats, in their order, became slower or faster by more than chance and
    more than 3 %; None: there is none, or too few repeats to tell."""
    if len(default_seconds) < _MIN_REPEATS:
        return None
    logs = [math.log(each) for each in default_seconds]
    middle = len(logs) // 2
    early, late = logs[:middle], logs[-middle:]
    change = median(late) - median(early)
    spread = math.hypot(half_width(early) or 0.0, half_width(late) or 0.0)
    if abs(change) <= max(spread, math.log1p(_DRIFT)):
        return None
    return Drift(math.exp(change), len(logs))


def level_at(place: float, anchors: Sequence[tuple[float, float]]) -> float:
    """Returns the machine's level at a place in the campaign, from (place, log seconds) of the default's repeats: the
    median of the three nearest."""
    nearest = sorted(anchors, key=lambda anchor: abs(anchor[0] - place))[:3]
    return median(each for _, each in nearest)
