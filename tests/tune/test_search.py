"""What a search is told, and what it makes of noise, drift, memory and contradictions."""

import math
import random
from collections.abc import Callable

import pytest

from laggard.kit.errors import UsageError
from laggard.tune.board import importances
from laggard.tune.plan import (
    Configuration,
    Constraint,
    Found,
    Outcome,
    Parameter,
    Plan,
    Space,
    Status,
    changes,
    check_space,
    configurations,
    normal,
)
from laggard.tune.search import Search
from laggard.tune.statistics import TIE, Word, compare, drift_of

SPACE = Space(
    (
        Parameter("stage", (0, 1, 2, 3), 1),
        Parameter("micro", (1, 2, 4, 8), 2),
        Parameter("overlap", (False, True), False),
        Parameter("buckets", (10, 100, 1000), 100, "more", (("overlap", (True,)),)),
        Parameter("inert", ("a", "b", "c"), "a", "more"),
    ),
    needs_as_much_memory=lambda one, other: one["micro"] >= other["micro"] and one["stage"] <= other["stage"],  # type: ignore[operator]
)


def truth(own: Configuration) -> Outcome:
    """Best: stage 2, micro 4, overlap with buckets of 1000. Stages below 3 have no memory for micro 8."""
    stage, micro = own["stage"], own["micro"]
    assert isinstance(stage, int) and isinstance(micro, int)
    if micro == 8 and stage < 3:
        return Outcome(Status.OUT_OF_MEMORY)
    seconds = 10 + {0: 3, 1: 2, 2: 0, 3: 6}[stage] + {1: 4, 2: 2, 4: 0, 8: 0}[micro]
    seconds *= {10: 1.1, 100: 1.0, 1000: 0.8}[own["buckets"]] if own["overlap"] else 1.0  # type: ignore[index]
    return Outcome(Status.OK, seconds)


def search(
    measure: Callable[[Configuration, int], Outcome], space: Space = SPACE, plan: Plan | None = None
) -> tuple[Search, Found]:
    own = Search(space, plan or Plan(trials=80))
    steps, place = own.run(), 0
    proposal = next(steps)
    while True:
        try:
            proposal = steps.send(measure(proposal.configuration, place))
            place += 1
        except StopIteration as stop:
            return own, stop.value


def noisy(seed: int, noise: float, level: Callable[[int], float] = lambda place: 0.0) -> Callable[..., Outcome]:
    drawn = random.Random(seed)

    def measure(own: Configuration, place: int) -> Outcome:
        found = truth(own)
        if found.seconds is None:
            return found
        return found._replace(seconds=found.seconds * math.exp(level(place) + drawn.gauss(0, noise)))

    return measure


@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_found_and_memory_is_learnt_from(seed: int) -> None:
    own, found = search(noisy(seed, 0.01))
    assert found.best is not None
    best = {"stage": 2, "micro": 4, "overlap": True, "buckets": 1000}
    assert best.items() <= changes(SPACE, found.best.configuration).items(), found.best
    assert found.best.comparison.low is not None and found.best.comparison.low > 1.5
    failures = [each for each in own.board.configurations.values() if truth(each).status is Status.OUT_OF_MEMORY]
    assert len(failures) <= 3, f"out of memory again and again: {failures}"
    important = importances(own.board, TIE)
    assert important[0].parameter == "overlap" or important[0].effect > 1.2
    inert = next(each for each in important if each.parameter == "inert")
    assert inert.low < 1.03, f"what does nothing is called important: {inert}"


def test_ties_are_called_ties() -> None:
    """Nothing matters: whatever looked best by luck does not stand against the default."""
    for seed in range(10):
        drawn = random.Random(seed)
        _, found = search(lambda own, place, drawn=drawn: Outcome(Status.OK, math.exp(drawn.gauss(0, 0.02))))  # type: ignore[misc]
        gain = 1.0 if found.best is None else found.best.comparison.ratio
        assert gain < 1.05, f"seed {seed} found {found.best} where nothing is"
    words = [compare([1.0] * 8, [1.0 + 0.001 * (-1) ** each for each in range(8)]).word, compare([1.0], [0.5]).word]
    assert words == [Word.TIE, Word.OPEN]


def test_a_machine_that_becomes_slower_does_not_hide_the_best() -> None:
    """Half as fast at the end as at the beginning: pairs and the default's repeats carry the comparison."""
    own, found = search(noisy(3, 0.01, lambda place: 0.7 * place / 80))
    assert found.best is not None, found
    assert truth(found.best.configuration).seconds == pytest.approx(8.0, rel=0.01)
    drift = own.board.drift()
    assert drift is not None and drift.ratio > 1.2, "the drift was not seen"
    assert drift_of([1.0, 1.01, 0.99, 1.0, 1.01, 0.99]) is None


@pytest.mark.parametrize("seed", range(3))
def test_what_was_slow_for_a_moment_when_first_looked_at_is_found_with_the_trials_that_are_left(seed: int) -> None:
    """The values of the best configuration take twice as long when they are measured first; the machine is noisy."""
    drawn, seen = random.Random(seed), set()

    def measure(own: Configuration, place: int) -> Outcome:
        found = truth(own)
        if found.seconds is None:
            return found
        first = own["micro"] == 4 and str(own) not in seen
        seen.add(str(own))
        return found._replace(seconds=found.seconds * (2 if first else 1) * math.exp(drawn.gauss(0, 0.03)))

    _, found = search(measure, plan=Plan(trials=1500, seed=seed))
    assert found.best is not None
    assert truth(found.best.configuration).seconds == pytest.approx(8.0, rel=0.01), found.best


@pytest.mark.parametrize("trials", [40, 120, 500])
def test_no_more_trials_are_taken_than_allowed(trials: int) -> None:
    own, found = search(noisy(5, 0.1), plan=Plan(trials=trials))
    assert own.board.spent <= trials, found.ended


def test_a_default_that_does_not_run_ends_the_search() -> None:
    _, found = search(lambda own, place: Outcome(Status.CRASHED, None, "no such file"))
    assert found.best is None and "default" in found.ended


def test_a_default_that_turns_wrong_recommends_nothing() -> None:
    def measure(own: Configuration, place: int) -> Outcome:
        return Outcome(Status.WRONG) if place > 40 and own == normal(SPACE, {}) else truth(own)

    _, found = search(measure)
    assert found.best is None and "wrong" in found.ended


def test_the_only_fast_one_that_fails_in_its_last_round_is_out() -> None:
    """A finalist that is right in all runs but one is not recommended."""
    seen = {"count": 0}

    def measure(own: Configuration, place: int) -> Outcome:
        if own["stage"] == 2:
            seen["count"] += 1
            if seen["count"] > 30:
                return Outcome(Status.WRONG, None, "loss differs")
        return truth(own)

    _, found = search(measure)
    assert found.best is None or found.best.configuration["stage"] != 2


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Space((Parameter("a", (1, 2), 1), Parameter("a", (1, 2), 1))), "twice"),
        (Space((Parameter("a", (1, 2), 3),)), "none of its values"),
        (Space((Parameter("a", (1, 1), 1),)), "twice"),
        (Space((Parameter("a", (1, 2), 1, "", (("b", (1,)),)), Parameter("b", (1, 2), 1))), "depends on b"),
        (Space((Parameter("a", (1, 2), 1),), (Constraint("a is 2", lambda own: own["a"] == 2),)), "default itself"),
        (Space((Parameter("a", (1, 2), 1),), (Constraint("a is 1", lambda own: own["a"] == 1),)), "nothing to tune"),
    ],
)
def test_a_space_that_contradicts_itself_is_refused(space: Space, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_space(space)


def test_configurations_that_mean_the_same_are_one() -> None:
    assert len(list(configurations(SPACE))) == 4 * 4 * 3 * (1 + 3)
