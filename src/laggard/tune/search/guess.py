"""The next configuration by optuna's TPE, from all that is known. The same knowledge and seed give the same answer."""

from __future__ import annotations

import warnings
from typing import Any

from laggard.tune.search.board import Board
from laggard.tune.space import Space, Value, normal

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
