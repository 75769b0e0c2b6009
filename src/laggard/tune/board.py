"""The knowledge of a search: every configuration's times and failures, corrected for the machine's drift. It tells
what each parameter explains, and guesses the next one. Pure.

Of a parameter's values the mean times are fitted together with those of all other parameters (additive model of the
logarithm, ridge); a parameter's effect is the range between its best and its worst value. The interval of 90 % comes
from fits to resampled trials (bootstrap). A guess is optuna's TPE's: the same knowledge and seed give the same answer.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from laggard.tune.plan import Configuration, Outcome, Parameter, Space, Status, Value, allowed, is_active, key, normal
from laggard.tune.statistics import Drift, drift_of, level_at, noise_of, without_spikes

_BLAME = 4.0
_NOISE_REPEATS = 12
_FAILURES_OF_A_VALUE = 2
"""A value that failed in so many configurations, and worked in none, is not tried any more."""


Pair = tuple[str, str]
"""A parameter and one of its values, as repr() has it."""


class Board:
    """Grows with each outcome. Times are logarithms of seconds."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.default = normal(space, space.default)
        self.configurations: dict[str, dict[str, Value]] = {}
        self.failed: dict[str, Status] = {}
        self.spent = 0
        self._times: dict[str, list[tuple[int, float]]] = {}
        self._worked: Counter[Pair] = Counter()
        self._broke: Counter[Pair] = Counter()
        self._wrong: list[frozenset[Pair]] = []
        self._noise: float | None = None
        self._suspects: frozenset[Pair] = frozenset()

    def add(self, configuration: Configuration, outcome: Outcome, timed: bool = True) -> None:
        """`timed`: whether its time counts, beside whether it ran."""
        name = key(configuration)
        self.configurations[name] = dict(configuration)
        if outcome.status is Status.OK and outcome.seconds is not None:
            self._noise = None
            if timed:
                self._times.setdefault(name, []).append((self.spent, math.log(outcome.seconds)))
        else:
            self.failed[name] = outcome.status
        if outcome.status is not Status.OUT_OF_MEMORY:
            counts = self._worked if outcome.status is Status.OK else self._broke
            counts.update(self._changed(configuration))
        if outcome.status is Status.WRONG:
            self._wrong.append(frozenset(self._changed(configuration)))
            self._suspects = self._explain_wrong()
        self.spent += 1

    def _explain_wrong(self) -> frozenset[Pair]:
        """Returns values such that every wrong result had one of them, and that explain most. Some results are wrong
        only now and then, so that a configuration that was right may have such a value."""
        suspects: set[Pair] = set()
        while open_ones := [each for each in self._wrong if each and not each & suspects]:
            counts = Counter(value for each in open_ones for value in each)
            suspects.add(min(counts, key=lambda each: (self._cost(each, counts[each]) / counts[each], each)))
        return frozenset(suspects)

    def _cost(self, pair: Pair, wrong: int) -> float:
        """Returns what it costs to blame a value: its trials' negative log-likelihood at the rate at which they were
        wrong, and a constant for each value that is blamed. A few values that are always wrong, or one that is wrong
        now and then, explain more than a good value that was there whenever something was wrong."""
        whole = wrong + self._worked[pair]
        rate = wrong / whole
        entropy = -sum(each * math.log(each) for each in (rate, 1 - rate) if each > 0)
        return whole * entropy + _BLAME

    def seconds(self, configuration: Configuration) -> list[float]:
        """Returns the times as they were measured, in their order."""
        return [math.exp(each) for _, each in self._times.get(key(configuration), ())]

    def mean(self, configuration: Configuration) -> float | None:
        """Returns the mean logarithm, relative to the default where the machine drifts; None: it has no time, failed
        once, or has a value that made results wrong."""
        name = key(configuration)
        if name in self.failed or name not in self._times or self.is_suspect(configuration):
            return None
        own = self._times[name]
        if self.drift() is None:
            return fmean(without_spikes([each for _, each in own], self.noise()))
        anchors = self._times[key(self.default)]
        first = anchors[0][1]
        return fmean(without_spikes([each - level_at(place, anchors) + first for place, each in own], self.noise()))

    def repeats(self, configuration: Configuration) -> int:
        return len(self._times.get(key(configuration), ()))

    def drift(self) -> Drift | None:
        return drift_of(self.seconds(self.default))

    def noise(self) -> float:
        """Returns the standard deviation of a time's logarithm, by the last repeats of each configuration."""
        if self._noise is None:
            latest = [each[-_NOISE_REPEATS:] for each in self._times.values()]
            found = noise_of([[math.exp(time) for _, time in each] for each in latest])
            self._noise = 0.01 if found is None else max(found, 1e-4)
        return self._noise

    def ranking(self) -> list[dict[str, Value]]:
        """Returns the configurations that never failed, the fastest first."""
        known = [(mean, name) for name, each in self.configurations.items() if (mean := self.mean(each)) is not None]
        return [self.configurations[name] for _, name in sorted(known)]

    def may_try(self, configuration: Configuration) -> bool:
        """Returns whether the configuration is allowed, and nothing known speaks against it."""
        if key(configuration) in self.failed or not allowed(self.space, configuration):
            return False
        if self.is_suspect(configuration) or any(map(self._is_bad, self._changed(configuration))):
            return False
        more = self.space.needs_as_much_memory
        return more is None or not any(more(configuration, each) for each in self._out_of_memory())

    def is_suspect(self, configuration: Configuration) -> bool:
        """Returns whether it has a value that made results wrong. Such a one is never tried again nor recommended."""
        return not self._suspects.isdisjoint(self._changed(configuration))

    @property
    def suspects(self) -> list[Pair]:
        """The values that made results wrong, as (name, value)."""
        return sorted(self._suspects)

    def _is_bad(self, pair: Pair) -> bool:
        """Returns whether this value broke what worked without it, more than once."""
        return self._broke[pair] >= _FAILURES_OF_A_VALUE and not self._worked[pair]

    def _out_of_memory(self) -> Iterable[Configuration]:
        return (self.configurations[name] for name, why in self.failed.items() if why is Status.OUT_OF_MEMORY)

    def _changed(self, configuration: Configuration) -> Iterable[Pair]:
        return ((name, repr(value)) for name, value in configuration.items() if value != self.default[name])


def with_value(space: Space, configuration: Configuration, parameter: Parameter, value: Value) -> dict[str, Value]:
    return normal(space, {**configuration, parameter.name: value})


def newly_active(space: Space, before: Configuration, after: Mapping[str, Value]) -> list[Parameter]:
    """Returns the parameters that act in `after` and not in `before`."""
    return [each for each in space.parameters if is_active(each, after) and not is_active(each, before)]


_DRAWS: Final = 100
_RIDGE: Final = 0.1
_SEED: Final = 20261117
_MIN_ROWS: Final = 8


class ImportanceRow(msgspec.Struct, frozen=True):
    parameter: str
    effect: float
    """Throughput of its best value over that of its worst, the others as they are."""
    low: float
    high: float
    matters: bool
    """False: its interval reaches what repeats differ by."""


def importances(board: Board, tie: float) -> tuple[ImportanceRow, ...]:
    """Returns the parameters that were varied, the most important first; empty with fewer than eight trials."""
    rows = [(each, mean) for each in board.configurations.values() if (mean := board.mean(each)) is not None]
    varied = [each for each in board.space.parameters if len({repr(row[each.name]) for row, _ in rows}) > 1]
    if len(rows) < _MIN_ROWS or not varied:
        return ()
    columns = [(place, value) for place, each in enumerate(varied) for value in _values(each, rows)]
    design = np.array([[float(row[varied[place].name] == value) for place, value in columns] for row, _ in rows])
    target = np.array([mean for _, mean in rows])
    random = np.random.default_rng(_SEED)
    own = _ranges(design, target, columns, len(varied))
    draws = np.array(
        [
            _ranges(design[chosen], target[chosen], columns, len(varied))
            for chosen in (random.integers(0, len(rows), len(rows)) for _ in range(_DRAWS))
        ]
    )
    low, high = np.quantile(draws, (0.05, 0.95), axis=0)
    least = max(math.log1p(tie), board.noise())
    found = [
        ImportanceRow(
            each.name,
            math.exp(float(own[place])),
            math.exp(float(low[place])),
            math.exp(float(high[place])),
            float(low[place]) > least,
        )
        for place, each in enumerate(varied)
    ]
    return tuple(sorted(found, key=lambda each: -each.effect))


def _values(parameter: Parameter, rows: Sequence[tuple[Configuration, float]]) -> list[Value]:
    return [value for value in parameter.choices if any(row[parameter.name] == value for row, _ in rows)]


def _ranges(
    design: npt.NDArray[np.float64], target: npt.NDArray[np.float64], columns: Sequence[tuple[int, Value]], count: int
) -> npt.NDArray[np.float64]:
    """Returns each parameter's range among the values that the rows have."""
    centred = target - target.mean()
    solution = np.linalg.solve(design.T @ design + _RIDGE * np.eye(design.shape[1]), design.T @ centred)
    seen = np.atleast_1d(design.any(axis=0))
    found = np.zeros(count)
    for place in range(count):
        own = [solution[at] for at, (parameter, _) in enumerate(columns) if parameter == place and seen[at]]
        found[place] = max(own) - min(own) if own else 0.0
    return found


_TRIES = 5
_PENALTY = 0.5
"""The logarithm by which a configuration that failed counts as slower than the slowest that worked."""


def guess(board: Board, seed: int) -> dict[str, Value] | None:
    """Returns a configuration that was not tried; None where TPE comes up with none."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed, n_startup_trials=0)
    study = optuna.create_study(sampler=sampler)
    distributions = distributions_of(board.space)
    study.add_trials(_trials(board, distributions))
    for _ in range(_TRIES):
        trial = study.ask(distributions)
        found = normal(board.space, trial.params)
        if board.may_try(found) and not board.repeats(found):
            return found
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return None


def distributions_of(space: Space) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution

    return {each.name: CategoricalDistribution(each.choices) for each in space.parameters}


def _trials(board: Board, distributions: dict[str, Any]) -> list[Any]:
    from optuna.trial import create_trial

    means = {name: board.mean(each) for name, each in board.configurations.items()}
    known = [each for each in means.values() if each is not None]
    worst = max(known, default=0.0) + _PENALTY
    return [
        create_trial(
            params=board.configurations[name], distributions=distributions, value=worst if mean is None else mean
        )
        for name, mean in means.items()
    ]
