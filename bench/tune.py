"""The tuner's search on response surfaces with noise, traps and parameters that do nothing, beside random search, plain
TPE and measuring everything: how far from the true optimum, with how many evaluations, and what was wrong.

    python bench/tune.py [--surfaces 50] [--first 0] [--share 0.1] [--trials 120] [--peers]

The surfaces (common/tuning_surfaces.py) are drawn by seed. An evaluation is one run, repeats and failures included.
Regret is the true time of what was chosen over the true optimum, less 1.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable

from common.tuning_surfaces import Machine, Surface, surface

from laggard.tune.board import distributions_of
from laggard.tune.plan import Plan, Settings, Status, configurations, normal
from laggard.tune.search import Search

Tuner = Callable[[Surface, Machine, int, int], Settings]


def tune(own: Surface, machine: Machine, budget: int, seed: int) -> Settings:
    search = Search(own.space, Plan(trials=budget, seed=seed, starts=own.starts))
    steps = search.run()
    proposal = next(steps)
    while True:
        try:
            proposal = steps.send(machine.measure(proposal.configuration))
        except StopIteration as stop:
            return stop.value.best.configuration if stop.value.best else search.board.default


def at_random(own: Surface, machine: Machine, budget: int, seed: int) -> Settings:
    drawn = random.Random(f"random {seed}")
    chosen = (
        normal(own.space, {each.name: drawn.choice(each.choices) for each in own.space.parameters})
        for _ in range(budget)
    )
    return _best(own, machine, chosen)


def everything(own: Surface, machine: Machine, budget: int, seed: int) -> Settings:
    return _best(own, machine, configurations(own.space))


def _best(own: Surface, machine: Machine, chosen: object) -> Settings:
    best, least = own.space.default, math.inf
    for each in chosen:  # type: ignore[attr-defined]
        outcome = machine.measure(each)
        if outcome.seconds is not None and outcome.seconds < least:
            best, least = each, outcome.seconds
    return best


_TPE_TRIALS = 500
"""It takes longer for each trial that it knows: of thousands it would think for hours."""


def plain_tpe(own: Surface, machine: Machine, budget: int, seed: int) -> Settings:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    distributions = distributions_of(own.space)
    for _ in range(min(budget, _TPE_TRIALS)):
        trial = study.ask(distributions)
        outcome = machine.measure(normal(own.space, trial.params))
        failed = outcome.seconds is None
        study.tell(trial, outcome.seconds, state=optuna.trial.TrialState.FAIL if failed else None)
    return normal(own.space, study.best_params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--surfaces", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.1, help="of all configurations, at most")
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--peers", action="store_true", help="also the other searches")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    tuners: dict[str, Tuner] = {"laggard tune": tune}
    if arguments.peers:
        tuners |= {"random search": at_random, "plain TPE": plain_tpe, "everything, once each": everything}
    rows: dict[str, list[tuple[float, bool, int, float, int]]] = {name: [] for name in tuners}
    for seed in range(arguments.first, arguments.first + arguments.surfaces):
        own = surface(seed)
        every = list(configurations(own.space))
        optimum = min(found.seconds for each in every if (found := own.truth(each)).seconds is not None)
        budget = min(arguments.trials, int(arguments.share * len(every)))
        for name, tuner in tuners.items():
            machine = Machine(own, seed)
            began = time.process_time()
            chosen = tuner(own, machine, budget, seed)
            spent = time.process_time() - began
            found = own.truth(chosen)
            wrong = found.status is not Status.OK
            regret = math.inf if found.seconds is None else found.seconds / optimum - 1
            rows[name].append((regret, wrong, machine.measured, spent, len(every)))
            if arguments.verbose:
                print(seed, own.kind, own.noise, len(every), name, f"{regret:.4f}", machine.measured, f"{spent:.1f}")
    print("| search | within 1 % | median regret | worst right | wrong chosen | evaluations | of all | s a trial |")
    print("|---|---|---|---|---|---|---|---|")
    for name, own_rows in rows.items():
        right = [each[0] for each in own_rows if not each[1]]
        middle, worst = (statistics.median(right), max(right)) if right else (math.inf, math.inf)
        print(
            f"| {name} | {sum(each <= 0.01 for each in right)} of {len(own_rows)} | {middle:.2%} "
            f"| {worst:.1%} | {sum(each[1] for each in own_rows)} "
            f"| {statistics.median(each[2] for each in own_rows):.0f} "
            f"| at most {max(each[2] / each[4] for each in own_rows):.1%} "
            f"| {sum(each[3] for each in own_rows) / sum(each[2] for each in own_rows):.3f} |"
        )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
