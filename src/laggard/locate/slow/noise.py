"""How far healthy ranks stray from their peers, where their noise lasts: the chance that a level is no more than that.
Pure.

Noise that lasts does not go away in a mean: of a window that is no longer than its memory, the mean strays as far as a
single step. So its variance over a window is not taken from that of its steps. What is measured is by how much the
means of neighbouring blocks of 1, 2, 4 ... steps differ (Haar's wavelet variance, in time series of clocks known as
Allan's: Percival and Walden, Wavelet Methods for Time Series Analysis, 2000, chapter 8). Noise without memory halves it
with each doubling; noise that lasts does so only beyond its memory, which may be longer than what is recorded.

Beyond what is recorded a model has to tell: noise that keeps the share rho of its value from step to step, beside noise
drawn anew, and a level by which a rank differs for good. All are taken together that explain the blocks and the levels
of the other ranks, each by its likelihood. So no estimate has to be right: where the ranks cannot tell noise that lasts
from a slow rank, the chance is large. It is a mixture of Student's t, as in Smyth's moderated t (Stat. Appl. Genet.
Mol. Biol. 3, 2004)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats
from laggard.locate.medians import median
from laggard.locate.shares import FEW, MIN_COST

RHOS: Final = {0.0: 0.30, 0.5: 0.25, 0.8: 0.20, 0.9: 0.10, 0.95: 0.06, 0.98: 0.04, 0.99: 0.03, 0.995: 0.02}
"""The shares that noise keeps from step to step, and how likely each is beforehand. Our choice: of 101 real runs nearly
all had less than 0.5 (docs/development/benchmark.md); the long ones are there so that a job which has them is
believed."""

FAST: Final = (0.0, 0.5, 0.8)
"""The shares that noise beside it keeps."""

QUICK: Final = (0.3, 0.7, 0.95)
"""The parts of the variance of a step's noise that this other noise has."""

LEVELS: Final = {0.001: 0.5, 0.003: 0.5, 0.01: 5e-3, 0.017: 5e-3, 0.03: 1e-3, 0.055: 1e-3, 0.1: 1e-3}
"""The standard deviations, in step times, of what healthy ranks differ by for good, and how likely each is beforehand.
GPUs of one kind differ by less than half a percent at equal work; three jobs in a thousand give their ranks unequal
work that nothing tells of. Our choice: at a tenth of that, healthy jobs with such work were accused twice as often."""

OF_GPUS: Final = max(level for level, likely in LEVELS.items() if likely == max(LEVELS.values()))
"""The largest of LEVELS that is there without a cause. What is beyond it is asked once of a job, and not of each part
or look: it stays."""

MAX_FREEDOM: Final = 24.0
"""The most degrees of freedom of one length of blocks: a model that is roughly right has to fit all lengths alike, and
not the shortest to the last digit."""

MAX_ERRORS: Final = 40
"""The most standard errors that are asked for."""

SLOW: Final = 0.003
"""How likely one of the others is slow itself, or compared with one who is. Its level then tells nothing of how healthy
ones differ. Our choice."""

TWO_KINDS: Final = 1e-3
"""How likely there are two kinds of them, of two levels. Our choice."""

_VARIANCES: Final = np.geomspace(1e-8, 1.0, 49)
_LOG_VARIANCES: Final = np.log(_VARIANCES)


class Blocks(NamedTuple):
    """Half the mean square of what neighbouring blocks of `length` steps differ by, in step times squared."""

    length: int
    variance: float
    freedom: float


def blocks_of(series: Floats) -> list[Blocks]:
    """The blocks of all lengths of `series` [S, R]: 1, 2, 4 ... steps, up to half of what there is. Of FEW series and
    more the median is taken, which one slow rank does not move."""
    steps, count = series.shape
    found = []
    length = 1
    while (pairs := steps // (2 * length)) >= 1:
        means = series[steps - 2 * length * pairs :].reshape(pairs, 2, length, count).mean(axis=2)
        own = ((means[:, 0] - means[:, 1]) ** 2).mean(axis=0) / 2
        several = count >= FEW
        # The median of chi-squared lies below its mean (Wilson and Hilferty, Proc. Nat. Acad. Sci. 17, 1931).
        variance = median(own) / (1 - 2 / (9 * pairs)) ** 3 if several else float(own.mean())
        freedom = 0.9 * pairs * count * (0.6 if several else 0.5)
        found.append(Blocks(length, max(variance, 1e-12), min(MAX_FREEDOM, max(1.0, freedom))))
        length *= 2
    return found


def joined_blocks(parts: Sequence[Sequence[Blocks]]) -> list[Blocks]:
    """The blocks of several parts of a window, none across their bounds."""
    by_length: dict[int, list[Blocks]] = {}
    for each in (each for part in parts for each in part):
        by_length.setdefault(each.length, []).append(each)
    found = []
    for length, some in sorted(by_length.items()):
        freedom = sum(each.freedom for each in some)
        variance = sum(each.variance * each.freedom for each in some) / freedom
        found.append(Blocks(length, variance, min(MAX_FREEDOM, freedom)))
    return found


NO_SPREAD: Final = np.zeros(len(_VARIANCES))


def spread_of(levels: Floats, kinds: bool = False) -> Floats:
    """The logarithm of how likely the `levels` [R] of others, about 0, are by each of _VARIANCES, without the freedom
    that their middle takes. Those that are slow have any level from a hundredth of a step to a whole one. `kinds`:
    there may be two, each with its own mean."""
    known = np.sort(levels[np.isfinite(levels)])
    slow = SLOW / (2 * math.log(1 / MIN_COST) * np.maximum(np.abs(known), MIN_COST))
    likely: Floats = (
        np.log((1 - SLOW) * _normal(known) + slow).sum(axis=1) * max(1, len(known) - 1) / max(1, len(known))
    )
    if not kinds or len(known) < FEW:
        return likely
    place = 1 + int(np.argmax(np.diff(known)))
    low, high = median(known[:place]), median(known[place:])
    both = np.log((_normal(known - low) + _normal(known - high)) / 2 + 1e-99).sum(axis=1) * (1 - 2 / len(known))
    together: Floats = np.logaddexp(likely, math.log(TWO_KINDS) + both)
    return together


def _normal(values: Floats) -> Floats:
    """[V, R]: the density of `values` [R] by each of _VARIANCES."""
    found: Floats = np.exp(-(values**2) / (2 * _VARIANCES[:, None])) / np.sqrt(2 * math.pi * _VARIANCES[:, None])
    return found


class Chances(NamedTuple):
    """How likely healthy noise is to reach a level: `ever` with all that ranks may differ by for good, `now` without
    what needs a cause of its own."""

    ever: float
    now: float


class Where(NamedTuple):
    """The steps whose level is judged; by how many of those before they are told, and how many are between."""

    steps: int
    before: int = 0
    gap: int = 0


class Noise:
    """The models that explain what is seen, each with its weight, the variance of a level, and its freedom.

    Of noise that lasts, what was before tells most of what is now: a level is taken beside what each model expects by
    the level before (the regression of one mean upon another), so that the noise of the change counts."""

    def __init__(
        self, blocks: Sequence[Blocks], where: Where, spread: Floats, error: float = 0.0, wider: float = 1.0
    ) -> None:
        """`spread`: of spread_of(). `error`: the variance of what levels are compared with, in step times squared.
        `wider`: how many times the others' variance the noise of the judged one has."""
        freedom = np.array([each.freedom for each in blocks])
        seen = np.array([each.variance for each in blocks])
        lengths = tuple(each.length for each in blocks)
        within, prior, over, before, joint = _models(lengths, where)
        scale = (freedom * seen / within).sum(axis=1) / freedom.sum()
        fit = prior - (freedom * np.log(within)).sum(axis=1) / 2 - freedom.sum() * np.log(scale) / 2
        levels = np.array(list(LEVELS))
        variance, of_before, both = (
            (wider * scale * each)[:, None] + levels**2 + error for each in (over, before, joint)
        )
        self._told = both / of_before if where.before else np.zeros_like(both)
        self._variance = variance - self._told * both
        of_others = (scale * over)[:, None] + levels**2
        fit = fit[:, None] + np.log(list(LEVELS.values()))
        fit = fit + np.interp(np.log(of_others), _LOG_VARIANCES, spread)
        weight = np.exp(fit - fit.max())
        self._weight = weight / weight.sum()
        self._without_cause = levels <= OF_GPUS
        self._freedom = float(freedom.sum())

    @property
    def deviation(self) -> float:
        """How far a healthy level strays, as a standard deviation in step times."""
        return math.sqrt(float((self._weight * self._variance).sum()))

    def chances(self, level: float, before: float = 0.0) -> Chances:
        """The chances that a healthy rank reaches `level`, in step times, after the level `before`."""
        beyond = np.maximum(level - self._told * before, 0.0)
        tail = _upper_tail(beyond / np.sqrt(self._variance), self._freedom)
        weight = self._weight[:, self._without_cause]
        now = float((weight * tail[:, self._without_cause]).sum() / max(float(weight.sum()), 1e-300))
        return Chances(float((self._weight * tail).sum()), now)


@functools.lru_cache(1024)
def _models(lengths: tuple[int, ...], where: Where) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """By each of M models, of steps of variance 1: [M, K] the variance of blocks of each of `lengths` [K], [M] the
    logarithm of how likely the model is beforehand, and [M] each: the variances of the mean of the steps that are
    judged and of those before, and their covariance."""
    within, prior, means = [], [], []
    now, before, gap = where.steps, where.before, where.gap
    for model in _mixtures():
        within.append([2 * (_of_sum(model, each) - _of_sum(model, 2 * each) / 4) / each**2 for each in lengths])
        prior.append(math.log(model.weight))
        ends = now + gap + before, now + gap, gap + before, gap
        whole, one, other, between = (_of_sum(model, each) for each in ends)
        joint = (whole - one - other + between) / (2 * now * max(1, before))
        means.append((*(_of_sum(model, each) / max(1, each) ** 2 for each in (now, before)), joint))
    over, of_before, both = np.array(means).T
    return np.array(within), np.array(prior), over, of_before, both


class _Model(NamedTuple):
    """Noise of which the share `quick` of the variance keeps `fast` of its value from step to step, and the rest
    `slow`."""

    slow: float
    fast: float
    quick: float
    weight: float


def _mixtures() -> Iterator[_Model]:
    for slow, weight in RHOS.items():
        parts = [(0.0, 0.0), *((fast, quick) for fast in FAST if fast < slow for quick in QUICK)]
        yield from (_Model(slow, fast, quick, weight / len(parts)) for fast, quick in parts)


def _of_sum(model: _Model, steps: int) -> float:
    """The variance of the sum of so many steps of variance 1."""
    return model.quick * _of_one(model.fast, steps) + (1 - model.quick) * _of_one(model.slow, steps)


def _of_one(rho: float, steps: int) -> float:
    return steps * (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**steps) / (1 - rho) ** 2


def _upper_tail(ratio: NDArray[np.float64], freedom: float) -> NDArray[np.float64]:
    """What Student's t exceeds `ratio` with (Wallace's approximation, Ann. Math. Statist. 30, 1959)."""
    normal = np.sqrt(freedom * np.log1p(ratio * ratio / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    erfc = np.frompyfunc(math.erfc, 1, 1)
    found: NDArray[np.float64] = np.asarray(erfc(normal / math.sqrt(2)), np.float64) / 2
    return found


def errors_beyond(chance: float, freedom: float) -> float:
    """The standard errors that chance alone exceeds to either side as seldom."""
    ratios = np.linspace(0.0, MAX_ERRORS, 1 + 100 * int(MAX_ERRORS))
    return float(np.interp(-chance / 2, -_upper_tail(ratios, freedom), ratios))


def chance_of_moments(moments: int, strays: int, blocks: int, share: float, lasts: float) -> float:
    """How likely at least so many `moments` of at least so many `strays` together are among so many blocks, if one
    begins in a block with the probability `share`, and goes on into the next with the probability `lasts`: the binomial
    and the negative binomial distribution. One of them may have begun before the first block."""
    if moments <= 0:
        return 1.0
    begun = share / (1 - lasts)
    begin = binomial(moments, blocks, blocks, share) + begun * binomial(moments - 1, blocks, blocks, share)
    return min(1.0, begin * binomial(0, moments - 1, strays - 1, 1 - lasts))


def binomial(least: int, most: int, count: int, share: float) -> float:
    """How likely `least` to `most` of so many happen, each with the probability `share`. By logarithms: recordings have
    thousands of steps."""
    log_share, log_rest, whole = math.log(share), math.log1p(-share), math.lgamma(count + 1)
    return sum(
        math.exp(whole - math.lgamma(hit + 1) - math.lgamma(rest + 1) + hit * log_share + rest * log_rest)
        for hit, rest in ((hit, count - hit) for hit in range(least, min(most, count) + 1))
    )


def chance_of_share(hit: int, drawn: int, marked: int, count: int) -> float:
    """How likely at least `hit` of those `drawn` are among the `marked`, of `count` in all: the hypergeometric
    distribution, as in Fisher's exact test."""
    ways, rest = math.comb(count, drawn), count - marked
    most = min(drawn, marked)
    return sum(math.comb(marked, each) * math.comb(rest, drawn - each) / ways for each in range(hit, most + 1))
