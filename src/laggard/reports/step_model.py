"""The time of an optimizer step, fitted to measured runs of one platform, and the point where one ZeRO stage
overtakes another. Pure.

    T = c m g + a g + r_s g + K_s

with micro-batch m and accumulation g: computing is linear in the samples (c), each micro-step has an overhead (a) and,
from stage 2 on, a communication (r), and each optimizer step has one of its own (K). None is negative. What the runs
cannot tell apart is said: at one global batch m g is constant, and c and the K are known up to a constant only.

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

from laggard.reports.documents import ModelParameter, PredictedSpeed, StageCrossover
from laggard.reports.runs import Configuration, by_platform, speed

Floats = npt.NDArray[np.float64]

_DRAWS: Final = 300
_LEVELS: Final = (0.05, 0.95)
_SEED: Final = 20251117
_RANK_TOLERANCE: Final = 1e-9
_MAX_ITERATIONS: Final = 200


class StepModel(NamedTuple):
    platform: str
    parameters: tuple[ModelParameter, ...]
    noise: float | None
    """Relative standard deviation of a run about the model; None: as many parameters as runs."""
    runs: int
    names: tuple[str, ...]
    solution: Floats
    draws: Floats
    """The parameters of models that fit as well, one a row; empty: no interval can be given."""


def fit_step_model(configurations: Sequence[Configuration]) -> StepModel | None:
    """Fits one platform's configurations; None where none ran."""
    running = [each for each in configurations if each.samples_per_second]
    if not running:
        return None
    stages = sorted({each.stage for each in running})
    names = _names(stages)
    seconds = np.array(list(map(_step_seconds, running)))
    design = np.array([design_row(names, each.stage, each.micro_batch, each.grad_accum) for each in running])
    scaled = design / seconds[:, None]  # a time is known to a share of itself
    solution = solve_nonnegative(scaled, np.ones(len(running)))
    freedom = len(running) - int(np.linalg.matrix_rank(scaled, tol=_tolerance(scaled)))
    noise = float(np.sqrt(np.sum((scaled @ solution - 1) ** 2) / freedom)) if freedom > 0 else None
    draws = _draws(scaled, scaled @ solution, noise, freedom) if noise is not None else np.empty((0, len(names)))
    return StepModel(
        running[0].platform, _parameters(names, scaled, solution, draws), noise, len(running), names, solution, draws
    )


def predict(
    model: StepModel, stage: int, micro_batch: int, grad_accum: int, measured: float | None = None
) -> PredictedSpeed | None:
    """Returns the speed of a configuration of a stage that was measured, else None. The interval holds the mean of its
    runs, not the noise of one."""
    if f"stage {stage} a step" not in model.names:
        return None
    row = design_row(model.names, stage, micro_batch, grad_accum)
    samples = micro_batch * grad_accum
    seconds = float(row @ model.solution)
    per_second = samples / seconds if seconds > 0 else 0.0
    if not len(model.draws):
        return PredictedSpeed(stage, micro_batch, grad_accum, per_second, None, None, measured)
    slow, fast = np.quantile(model.draws @ row, (_LEVELS[1], _LEVELS[0]))
    low, high = samples / float(slow), samples / max(float(fast), 1e-12)
    return PredictedSpeed(stage, micro_batch, grad_accum, per_second, low, high, measured)


def _names(stages: Sequence[int]) -> tuple[str, ...]:
    micro = [f"stage {stage} a micro-step" for stage in stages if stage >= 2]
    return ("a sample", "a micro-step", *micro, *(f"stage {stage} a step" for stage in stages))


def design_row(names: Sequence[str], stage: int, micro_batch: int, grad_accum: int) -> Floats:
    """Returns what each parameter counts in an optimizer step."""
    own = {
        "a sample": micro_batch * grad_accum,
        "a micro-step": grad_accum,
        f"stage {stage} a micro-step": grad_accum,
        f"stage {stage} a step": 1,
    }
    return np.array([own.get(name, 0) for name in names], float)


def _parameters(names: Sequence[str], design: Floats, solution: Floats, draws: Floats) -> tuple[ModelParameter, ...]:
    """A parameter is identifiable where moving along no direction that leaves all runs as they are changes it."""
    _, sizes, directions = np.linalg.svd(design)
    rank = int((sizes > _tolerance(design)).sum())
    free = directions[rank:]
    loose = np.abs(free).max(axis=0) > 1e-6 if len(free) else np.zeros(len(names), bool)
    bounds = np.quantile(draws, _LEVELS, axis=0) if len(draws) else None
    return tuple(
        ModelParameter(
            name,
            float(solution[place]),
            None if bounds is None else float(bounds[0, place]),
            None if bounds is None else float(bounds[1, place]),
            not loose[place],
        )
        for place, name in enumerate(names)
    )


def _tolerance(design: Floats) -> float:
    return float(_RANK_TOLERANCE * np.abs(design).max() * max(design.shape))


def _draws(design: Floats, fitted: Floats, noise: float, freedom: int) -> Floats:
    """Returns fits to made runs that differ from the model as the measured ones do (parametric bootstrap). The noise
    itself is known by `freedom` residuals only, and is drawn as well."""
    random = np.random.default_rng(_SEED)
    found = []
    for _ in range(_DRAWS):
        own_noise = noise * np.sqrt(freedom / random.chisquare(freedom))
        found.append(solve_nonnegative(design, fitted * (1 + own_noise * random.standard_normal(len(fitted)))))
    return np.array(found)


def solve_nonnegative(design: Floats, target: Floats) -> Floats:
    """Returns the x >= 0 that minimises |design x - target| (Lawson and Hanson 1974, chapter 23)."""
    sizes = np.linalg.norm(design, axis=0)
    scaled = design / np.where(sizes > 0, sizes, 1.0)
    x = np.zeros(scaled.shape[1])
    active = np.zeros(len(x), bool)
    for _ in range(_MAX_ITERATIONS):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[active] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10:
            break
        active[best] = True
        x = _step_back(scaled, target, x, active)
    return np.asarray(x / np.where(sizes > 0, sizes, 1.0))


def _step_back(design: Floats, target: Floats, x: Floats, active: npt.NDArray[np.bool_]) -> Floats:
    """Solves for the active parameters, and drops those that would become negative."""
    while active.any():
        trial = np.zeros(len(x))
        trial[active] = np.linalg.lstsq(design[:, active], target, rcond=None)[0]
        negative = active & (trial <= 0)
        if not negative.any():
            return trial
        share = np.min(x[negative] / np.maximum(x[negative] - trial[negative], 1e-300))
        x = x + share * (trial - x)
        active[active & (x <= 1e-14)] = False
        if share == 0 and negative.any():
            active[negative] = False
    return np.zeros(len(x))


MIN_POINTS: Final = 3
"""The least number of points for a fit. A line through two points has no residuals: they bound the crossing, and say
nothing about the noise."""
_CROSSING_DRAWS: Final = 4000


class Bounds(NamedTuple):
    """The point where a line crosses zero, and an interval that holds it with 90 %."""

    crossing: float | None
    low: float | None
    high: float | None


def find_crossovers(configurations: Sequence[Configuration]) -> tuple[StageCrossover, ...]:
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
) -> StageCrossover:
    is_higher_faster = [speed(high) / speed(low) > 1 for low, high in pairs]
    bounds, basis = _crossing(pairs, is_higher_faster)
    winner = higher if is_higher_faster[0] else lower
    return StageCrossover(platform, (lower, higher), *bounds, basis, winner if basis == "one_side" else None)


def _crossing(
    pairs: Sequence[tuple[Configuration, Configuration]], is_higher_faster: Sequence[bool]
) -> tuple[Bounds, str]:
    if len(set(is_higher_faster)) == 1:
        return Bounds(None, None, None), "one_side"
    accumulation = np.array([low.grad_accum for low, _ in pairs], float)
    if len(set(accumulation)) < MIN_POINTS:
        return Bounds(None, float(accumulation[0]), float(accumulation[-1])), "bracket"
    extra = np.array([_step_seconds(high) - _step_seconds(low) for low, high in pairs])
    scale = np.array([_step_seconds(low) for low, _ in pairs])  # a time is known to a share of itself
    return fit_crossing(accumulation, extra, scale), "fit"


def _step_seconds(configuration: Configuration) -> float:
    """Returns the seconds of an optimizer step."""
    return configuration.micro_batch * configuration.grad_accum / speed(configuration)


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
    normal = random.standard_normal((_CROSSING_DRAWS, 2)) @ spread.T
    draws = solution + normal / np.sqrt(random.chisquare(freedom, (_CROSSING_DRAWS, 1)) / freedom)
    crossing = float(solution[1] / solution[0]) if solution[0] else None
    same_sign = draws[:, 0] * solution[0] > 0
    if same_sign.mean() < 2 * (_LEVELS[1] - 0.5):  # the slope may be of either sign: there may be no crossing at all
        return Bounds(crossing, None, None)
    low, high = np.quantile(draws[same_sign, 1] / draws[same_sign, 0], _LEVELS)
    return Bounds(crossing, max(0.0, float(low)), float(high))
