"""A smooth surface of speed over platform, ZeRO stage, micro-batch and accumulation, and the runs that are off it.
Pure.

The surface is a Gaussian process of the logarithm of the speed: a level for each platform and each stage, and smooth
dependences on the logarithms of micro-batch and accumulation, of which most is common to all platforms, less to those
of a stage, and least to a stage on a platform. Each run is predicted from all others, with the uncertainty that this
has: a run that nothing else predicts is not called wrong. A run is taken for wrong with a probability of its own, by
how far it is from the others' prediction, and has that much less weight: wrong runs do not draw the surface towards
themselves (the mixture of Box and Tiao, 1968).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from laggard.recommend.runs import Configuration, Run, merge_repeats, speed

Floats = npt.NDArray[np.float64]

MIN_RUNS: Final = 4
"""The least number of runs: with fewer nothing tells a wrong run from a right one."""
MAX_RUNS: Final = 100
"""The most runs that are judged together. Time grows with the cube: tables with more runs are judged in parts."""
MIN_DEVIATION: Final = np.log(1.2)
"""The least deviation of an outlier, by logarithm: a run within a fifth of the surface is none, however smooth the
others are."""
MIN_SCORE: Final = 3.5
"""The number of standard deviations from the surface from which on a run is an outlier."""

_WRONG_SHARE: Final = 0.03
"""The share of runs that are wrong, before anything is known."""
_WRONG_SPREAD: Final = 2.0
"""Standard deviation of the logarithm of what a wrong run is off by."""
_MIN_WEIGHT: Final = 1e-4
_NOISES: Final = (0.01, 0.02, 0.04, 0.08)
"""Relative noise of a run's speed: the one is taken with which the runs predict one another best."""
_ROUGHNESS: Final = (0.5, 1.0, 2.0, 4.0)
"""Multiples of the scales below, chosen in the same way."""
_ROUGHNESS_COST: Final = 1.5
"""The cost of doubling the roughness, in the logarithm of the likelihood: platforms are more alike than not."""
_LENGTH: Final = 3.0
"""Octaves of micro-batch or accumulation over which the surface bends."""
_FIRST_NOISE: Final = 16.0
"""The factor of the noise with which the fit begins, and which then halves: so one wrong run does not make its
neighbours look wrong before it is found."""
_ROUNDS: Final = 14


class Outlier(NamedTuple):
    run: Run
    expected: float
    """Samples per second, predicted from all other runs."""

    @property
    def ratio(self) -> float:
        """The measured value over the expected one."""
        return (self.run.samples_per_second or 0.0) / self.expected


class _Fit(NamedTuple):
    predicted: Floats
    """The logarithm of each run's speed, predicted from the others."""
    deviations: Floats
    """The standard deviation of that prediction."""
    likelihood: float


def find_outliers(runs: Sequence[Run]) -> tuple[Outlier, ...]:
    """Returns the runs that no smooth surface through the others explains, in the order of the table."""
    measured = [each for each in merge_repeats(runs) if each.samples_per_second]
    found = [outlier for part in _parts(measured) for outlier in _outliers_of(part)]
    return tuple(sorted(found, key=lambda outlier: outlier.run.line))


def _parts(runs: Sequence[Configuration]) -> list[list[Configuration]]:
    """Splits a large table so that each part still spans it."""
    count = -(-len(runs) // MAX_RUNS)
    ordered = sorted(runs, key=lambda run: (run.platform, run.stage, run.micro_batch, run.grad_accum, str(run.others)))
    return [ordered[start::count] for start in range(count)]


def _outliers_of(configurations: Sequence[Configuration]) -> list[Outlier]:
    """Judges each run of each configuration by what the other configurations predict: repeats would vouch for one
    another, and their closeness is not that of the surface."""
    if len(configurations) < MIN_RUNS:
        return []
    values = np.log([speed(each) for each in configurations])
    parts = _covariances(configurations)
    fits = [_fit(values, parts, noise, rough) for noise in _NOISES for rough in _ROUGHNESS]
    best = max(fits, key=lambda fit: fit.likelihood)
    return [
        Outlier(run, float(np.exp(predicted)))
        for each, predicted, deviation in zip(configurations, best.predicted, best.deviations, strict=True)
        for run in each.runs
        if run.samples_per_second and _is_off(float(np.log(run.samples_per_second)) - predicted, deviation)
    ]


def _is_off(off: float, deviation: float) -> bool:
    return abs(off) > MIN_DEVIATION and abs(off) > MIN_SCORE * deviation


def _covariances(runs: Sequence[Configuration]) -> tuple[Floats, Floats]:
    """Returns the covariances of what is common (levels and common dependences), and of what is particular to a stage
    or a platform, whose scale is chosen by the data."""
    micro = np.log2([run.micro_batch for run in runs])
    accumulation = np.log2([run.grad_accum for run in runs])
    platform = _same([run.platform for run in runs])
    stage = _same([str(run.stage) for run in runs])
    bend = _bend(micro) + _bend(accumulation) + _bend(micro) * _bend(accumulation)
    slope = _slope(micro) + _slope(accumulation)
    common = 10.0 + 4.0 * platform + 0.5 * stage + 0.25 * slope + 0.05 * bend
    for column in _usable_columns(runs):
        common = common + 0.25 * _same([str(dict(run.others).get(column)) for run in runs])
    particular = stage * (0.04 * slope + 0.02 * bend) + platform * (0.02 * slope + 0.01 * bend)
    particular = particular + platform * stage * (0.02 + 0.01 * slope + 0.005 * bend)
    return np.asarray(common), np.asarray(particular)


def _same(values: Sequence[str]) -> Floats:
    array = np.array(values)
    return np.asarray(array[:, None] == array[None, :], float)


def _bend(values: Floats) -> Floats:
    return np.asarray(np.exp(-((values[:, None] - values[None, :]) ** 2) / (2 * _LENGTH**2)))


def _slope(values: Floats) -> Floats:
    centred = (values - np.median(values)) * np.log(2)
    return np.asarray(centred[:, None] * centred[None, :])


def _usable_columns(runs: Sequence[Configuration]) -> list[str]:
    """Returns the other columns that sort the runs into classes of three and more: a column with a text of its own for
    a run would explain away whatever is wrong with it."""
    names = {name for run in runs for name, _ in run.others}
    usable = []
    for name in sorted(names):
        counts = np.unique([str(dict(run.others).get(name)) for run in runs], return_counts=True)[1]
        if len(counts) > 1 and counts.min() >= 3:
            usable.append(name)
    return usable


def _fit(values: Floats, parts: tuple[Floats, Floats], noise: float, rough: float) -> _Fit:
    """Predicts each run from the others. Runs that are off get less weight, until the weights stay as they are."""
    covariance = parts[0] + rough**2 * parts[1]
    weights = np.ones(len(values))
    for turn in range(_ROUNDS):
        tried = noise * max(1.0, _FIRST_NOISE / 2**turn)
        predicted, variance = _leave_one_out(values, covariance, tried**2 / weights, tried**2)
        right = np.log(1 - _WRONG_SHARE) + _log_density(values - predicted, variance)
        wrong = np.log(_WRONG_SHARE) + _log_density(values - predicted, variance + _WRONG_SPREAD**2)
        either = np.logaddexp(right, wrong)
        updated = np.maximum(np.exp(right - either), _MIN_WEIGHT)
        if tried == noise and np.allclose(updated, weights, atol=1e-3):
            break
        weights = updated
    likelihood = float(either.sum()) - _ROUGHNESS_COST * np.log2(rough / _ROUGHNESS[0])
    return _Fit(predicted, np.sqrt(variance), float(likelihood))


def _log_density(deviations: Floats, variance: Floats) -> Floats:
    """The logarithm: densities themselves are 0 for a row that is wrong by many powers of ten."""
    return np.asarray(-(deviations**2) / (2 * variance) - 0.5 * np.log(2 * np.pi * variance))


def _leave_one_out(values: Floats, covariance: Floats, noise: Floats, own_noise: float) -> tuple[Floats, Floats]:
    """Returns each run's prediction from all others, and its variance, noise of its own included (Rasmussen and
    Williams, Gaussian Processes for Machine Learning, equation 5.12)."""
    centred = values - np.median(values)
    inverse = np.linalg.inv(covariance + np.diag(noise))
    diagonal = np.diag(inverse)
    predicted = values - inverse @ centred / diagonal
    return predicted, np.maximum(1 / diagonal - noise, 0.0) + own_noise
