"""The share of the spread of times that each parameter explains, with an interval. Pure.

Of a parameter's values the mean times are fitted together with those of all other parameters (additive model of the
logarithm, ridge); a parameter's effect is the range between its best and its worst value. The interval of 90 % comes
from fits to resampled trials (bootstrap).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from laggard.tune.search.board import Board
from laggard.tune.space import Configuration, Parameter, Value

_DRAWS: Final = 100
_RIDGE: Final = 0.1
_SEED: Final = 20261117
_MIN_ROWS: Final = 8


class Importance(NamedTuple):
    parameter: str
    effect: float
    """Throughput of its best value over that of its worst, the others as they are."""
    low: float
    high: float
    matters: bool
    """False: its interval reaches what repeats differ by."""


def importances(board: Board, tie: float) -> tuple[Importance, ...]:
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
        Importance(
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
