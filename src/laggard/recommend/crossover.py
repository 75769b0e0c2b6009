"""The point where one ZeRO stage overtakes another, from measured step times. Pure.

Two stages are compared at the same micro-batch and accumulation, so that what both compute cancels. What is left of an
optimizer step is linear in the accumulation g: the stage that communicates in each micro-step takes r * g more, the
other takes K more once. The difference is fitted as r * g - K; where it crosses zero, at K / r, the stages are as fast
as each other. Reasoning from communication alone misses the part of K that is no communication.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from laggard.recommend.runs import Configuration, by_platform

Floats = npt.NDArray[np.float64]

MIN_POINTS: Final = 3
"""The least number of points for a fit. A line through two points has no residuals: they bound the crossing, and say
nothing about the noise."""
_DRAWS: Final = 4000
_LEVELS: Final = (0.05, 0.95)
_SEED: Final = 20251117


class Comparison(NamedTuple):
    """Two stages at one accumulation."""

    grad_accum: int
    micro_batch: int
    ratio: float
    """The speed of the higher stage over that of the lower."""


class Bounds(NamedTuple):
    """The point where a line crosses zero, and an interval that holds it with 90 %."""

    crossing: float | None
    low: float | None
    high: float | None


class Crossover(NamedTuple):
    """The point where two stages of a platform are as fast as each other. `low` to `high` holds the crossing with 90 %;
    None: not known, or without a bound."""

    platform: str
    lower_stage: int
    higher_stage: int
    points: tuple[Comparison, ...]
    grad_accum: float | None
    low: float | None
    high: float | None
    basis: str
    """The basis of the point. fit: of three points and more; bracket: between two neighbours; one_side: one stage wins
    everywhere."""

    @property
    def winner_everywhere(self) -> int | None:
        if self.basis != "one_side":
            return None
        return self.higher_stage if self.points[0].ratio > 1 else self.lower_stage


def find_crossovers(configurations: Sequence[Configuration]) -> tuple[Crossover, ...]:
    """Compares each two stages of each platform that were measured at two accumulations and more."""
    found = []
    for platform, own in by_platform(configurations).items():
        running = [each for each in own if each.samples_per_second]
        stages = sorted({each.stage for each in running})
        for lower, higher in itertools.combinations(stages, 2):
            pairs = _pairs(running, lower, higher)
            if len({low.grad_accum for low, _ in pairs}) > 1:
                found.append(_crossover(platform, lower, higher, pairs))
    return tuple(found)


def _pairs(running: Sequence[Configuration], lower: int, higher: int) -> list[tuple[Configuration, Configuration]]:
    """Returns the configurations that differ in their stage alone, the smallest accumulation first."""
    sides: list[dict[object, Configuration]] = [
        {(each.micro_batch, each.grad_accum, each.others): each for each in running if each.stage == stage}
        for stage in (lower, higher)
    ]
    pairs = [(sides[0][key], sides[1][key]) for key in sides[0] if key in sides[1]]
    return sorted(pairs, key=lambda pair: (pair[0].grad_accum, pair[0].micro_batch))


def _crossover(
    platform: str, lower: int, higher: int, pairs: Sequence[tuple[Configuration, Configuration]]
) -> Crossover:
    points = tuple(
        Comparison(low.grad_accum, low.micro_batch, (high.samples_per_second or 0.0) / (low.samples_per_second or 1.0))
        for low, high in pairs
    )
    bounds, basis = _crossing(pairs, points)
    return Crossover(platform, lower, higher, points, *bounds, basis)


def _crossing(pairs: Sequence[tuple[Configuration, Configuration]], points: Sequence[Comparison]) -> tuple[Bounds, str]:
    if all(point.ratio > 1 for point in points) or all(point.ratio <= 1 for point in points):
        return Bounds(None, None, None), "one_side"
    if len({point.grad_accum for point in points}) < MIN_POINTS:
        return Bounds(None, float(points[0].grad_accum), float(points[-1].grad_accum)), "bracket"
    accumulation = np.array([low.grad_accum for low, _ in pairs], float)
    extra = np.array([_step_seconds(high) - _step_seconds(low) for low, high in pairs])
    scale = np.array([_step_seconds(low) for low, _ in pairs])  # a time is known to a share of itself
    return fit_crossing(accumulation, extra, scale), "fit"


def _step_seconds(configuration: Configuration) -> float:
    """Returns the seconds of an optimizer step."""
    batch = configuration.micro_batch * configuration.grad_accum
    return batch / (configuration.samples_per_second or 1.0)


def fit_crossing(accumulation: Floats, extra: Floats, scale: Floats) -> Bounds:
    """Fits extra = r * accumulation - K by weighted least squares, and returns K / r with its bounds of 5 and 95 %.
    They come from draws of Student's distribution about the fit: a ratio of two uncertain numbers has no simple
    interval."""
    design = np.column_stack([accumulation, -np.ones(len(accumulation))]) / scale[:, None]
    solution, *_ = np.linalg.lstsq(design, extra / scale, rcond=None)
    freedom = len(extra) - 2
    residuals = extra / scale - design @ solution
    variance = float(residuals @ residuals) / freedom
    covariance = variance * np.linalg.inv(design.T @ design)
    random = np.random.default_rng(_SEED)
    spread = np.linalg.cholesky(covariance + 1e-18 * np.eye(2) * np.trace(covariance))
    normal = random.standard_normal((_DRAWS, 2)) @ spread.T
    draws = solution + normal / np.sqrt(random.chisquare(freedom, (_DRAWS, 1)) / freedom)
    crossing = float(solution[1] / solution[0]) if solution[0] else None
    same_sign = draws[:, 0] * solution[0] > 0
    if same_sign.mean() < 2 * (_LEVELS[1] - 0.5):  # the slope may be of either sign: there may be no crossing at all
        return Bounds(crossing, None, None)
    low, high = np.quantile(draws[same_sign, 1] / draws[same_sign, 0], _LEVELS)
    return Bounds(crossing, max(0.0, float(low)), float(high))
