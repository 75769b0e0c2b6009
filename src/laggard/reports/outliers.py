"""The numbers of a table that cannot be right: runs off a smooth surface of speed, and cells that break a relation of
columns. Pure.

The surface is a Gaussian process of the logarithm of the speed, over platform, ZeRO stage, micro-batch and
accumulation: a level for each platform and each stage, and smooth dependences on the logarithms of micro-batch and
accumulation, of which most is common to all platforms, less to those of a stage, and least to a stage on a platform.
Each run is predicted from all others, with the uncertainty that this has: a run that nothing else predicts is not
called wrong. A run is taken for wrong with a probability of its own, by how far it is from the others' prediction, and
has that much less weight: wrong runs do not draw the surface towards themselves (the mixture of Box and Tiao, 1968).

Tables that people make carry their own check: a total beside its parts, hours beside seconds a step. A column that is
the sum, the product or the quotient of others counts where most rows keep that closely, and it is not used to judge the
columns that it is made of: which cell of the row is wrong the table cannot tell, unless another relation clears the
others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from laggard.reports.runs import Configuration, Run, merge_repeats, speed

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
        if run.samples_per_second
        and abs(np.log(run.samples_per_second) - predicted) > max(MIN_DEVIATION, MIN_SCORE * deviation)
    ]


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


MIN_SHARE: Final = 0.6
"""The share of the rows that a relation must hold for, to be one; and never fewer than MIN_ROWS."""
MIN_ROWS: Final = 3
KEPT_DEVIATION: Final = 0.01
"""The share within which rows keep a relation: rounding, and times that were taken apart."""
BROKEN_DEVIATION: Final = 0.015
"""The share from which on a row that is off breaks a relation. Between the two nothing is said."""
TREND_KEPT_DEVIATION: Final = 0.3
TREND_BROKEN_DEVIATION: Final = 1.0
"""The deviation of a row that breaks a trend: more than twice or less than half of what the others' power law
expects."""
MAX_COLUMNS: Final = 12
MAX_ERRORS: Final = 50
_MAX_NUMBER: Final = 1e30
"""Products of several larger numbers, and quotients of smaller ones than its inverse, are no numbers."""


class Relation(NamedTuple):
    """`result` is the sum of two terms (`sign` is +), `scale` times their product or quotient (*, /), or goes with one
    term to the power of `scale` (^)."""

    result: str
    terms: tuple[str, ...]
    sign: str
    scale: float

    def __str__(self) -> str:
        if self.sign == "^":
            return f"{self.result} goes with {self.terms[0]} ^ {self.scale:.2g}"
        right = f" {self.sign} ".join(self.terms)
        return f"{self.result} = {right}" if self.scale == 1 else f"{self.result} = {self.scale:.4g} * {right}"


class TableError(NamedTuple):
    """A row that breaks a relation which most rows keep. `expected`: what `relation.result` should be there."""

    place: int
    """The place of the row among the rows, from 0."""
    relation: Relation
    measured: float
    expected: float


def find_table_errors(columns: Mapping[str, Sequence[float | None]]) -> tuple[TableError, ...]:
    """Returns the rows that break a relation, each once, by the relation that most rows keep. `columns`: numbers by
    name; None: no number in that row."""
    arrays = {
        name: np.array([np.nan if value is None else value for value in values], float)
        for name, values in list(columns.items())[:MAX_COLUMNS]
    }
    arrays = {name: np.where(_is_usual(values), values, np.nan) for name, values in arrays.items()}
    arrays = {name: values for name, values in arrays.items() if len(np.unique(values[np.isfinite(values)])) > 1}
    order = list(arrays)  # what is derived stands on the right: of relations that say the same, that one is told
    candidates = [*_sums(arrays), *_products(arrays), *_trends(arrays)]
    candidates.sort(key=lambda each: (each.relation.sign == "^", -each.share, -order.index(each.relation.result)))
    found: dict[int, TableError] = {}
    told: set[frozenset[str]] = set()
    for relation, _, expected, off in candidates:
        names = frozenset((relation.result, *relation.terms))
        if names in told:  # a weaker relation of the same columns: rows where a part is 0 would keep it too
            continue
        told.add(names)
        measured = arrays[relation.result]
        for place in np.flatnonzero(off > (BROKEN_DEVIATION if relation.sign != "^" else TREND_BROKEN_DEVIATION)):
            found.setdefault(int(place), TableError(int(place), relation, measured[place], expected[place]))
    return tuple(found[place] for place in sorted(found))[:MAX_ERRORS]


class _Candidate(NamedTuple):
    relation: Relation
    share: float
    """The share of rows that keep it."""
    expected: Floats
    off: Floats
    """The share by which each row breaks it."""


def _is_usual(values: Floats) -> npt.NDArray[np.bool_]:
    sizes = np.abs(values)
    return np.asarray((sizes == 0) | (sizes > 1 / _MAX_NUMBER) & (sizes < _MAX_NUMBER))


def _sums(arrays: Mapping[str, Floats]) -> list[_Candidate]:
    """Returns the sums of two columns that another one is: the total is the largest of the three."""
    found = []
    for total, first, second in _triples(arrays):
        parts = arrays[first], arrays[second]
        expected = parts[0] + parts[1]
        if first > second or np.any(parts[0] < 0) or np.any(parts[1] < 0):
            continue
        smallest = min(float(np.nanmax(part)) for part in parts)  # else a small part could be anything
        if min(np.ptp(part[np.isfinite(part)]) for part in parts) > 0:
            off = np.abs(arrays[total] - expected) / smallest
            found += _kept(Relation(total, (first, second), "+", 1.0), expected, off)
    return found


def _products(arrays: Mapping[str, Floats]) -> list[_Candidate]:
    """Returns the products and quotients of two columns that another one is, but for a constant factor."""
    positive = {name: values for name, values in arrays.items() if not np.any(values[np.isfinite(values)] <= 0)}
    found = []
    for result, first, second in _triples(positive):
        for sign in "*/":
            if sign == "*" and first > second:
                continue
            other = positive[second] if sign == "*" else 1 / positive[second]
            combined = positive[first] * other
            scale = _nice(float(np.nanmedian(positive[result] / combined)))
            off = _off(positive[result], scale * combined)
            if _varies(positive[result], off):
                found += _kept(Relation(result, (first, second), sign, scale), scale * combined, off)
    return found


def _trends(arrays: Mapping[str, Floats]) -> list[_Candidate]:
    """Returns the power laws of the first column that rises or falls throughout (what was varied) which other columns
    follow, by the median of the slopes between rows (Theil 1950, Sen 1968). They are rough, and told of last."""
    swept = next((name for name, values in arrays.items() if _is_swept(values)), None)
    if swept is None:
        return []
    found = []
    for name, values in arrays.items():
        if name == swept or not np.all(values > 0):
            continue
        steps = np.log(arrays[swept])
        ones, others = np.triu_indices(len(steps), 1)
        slope = np.median((np.log(values[ones]) - np.log(values[others])) / (steps[ones] - steps[others]))
        level = np.exp(np.median(np.log(values) - slope * steps))
        expected = level * np.exp(slope * steps)
        off = np.maximum(values / expected, expected / values) - 1
        kept = off <= TREND_KEPT_DEVIATION
        if kept.mean() > MIN_SHARE and len(values) >= MIN_ROWS:
            found.append(_Candidate(Relation(name, (swept,), "^", float(slope)), float(kept.mean()), expected, off))
    return found


def _is_swept(values: Floats) -> bool:
    changes = np.diff(values)
    return bool(np.all(values > 0) and (np.all(changes > 0) or np.all(changes < 0)))


def _nice(scale: float) -> float:
    return 1.0 if abs(scale - 1) < KEPT_DEVIATION / 2 else scale


def _triples(arrays: Mapping[str, Floats]) -> list[tuple[str, str, str]]:
    return list(itertools.permutations(arrays, 3))


def _kept(relation: Relation, expected: Floats, off: Floats) -> list[_Candidate]:
    """Returns the relation where most rows keep it."""
    known = np.isfinite(off)
    kept = off[known] <= KEPT_DEVIATION
    if kept.sum() < max(MIN_ROWS, MIN_SHARE * known.sum()):
        return []
    return [_Candidate(relation, float(kept.mean()), expected, off)]


def _varies(measured: Floats, off: Floats) -> bool:
    """Returns whether the rows that keep a relation have different results: else any column could be a part of it."""
    own = measured[np.isfinite(off) & (off <= KEPT_DEVIATION)]
    return len(own) > 1 and bool(np.ptp(own) > 3 * KEPT_DEVIATION * np.abs(own).max())


def _off(measured: Floats, expected: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(measured - expected) / np.maximum(np.abs(expected), np.abs(measured)))
