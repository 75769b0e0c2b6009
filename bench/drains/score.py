"""What the answers cost: healthy nodes taken out, and for how long; faults that were caught, and when."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from drains.events import HOUR, edges
from drains.laggard import LOOK_SECONDS
from drains.states import CLASSES, Answers, Judge, Shown, State
from drains.stream import Node, Span


class Drain(NamedTuple):
    """A healthy node that was taken out. `why`: the reason; `state`: what it was in."""

    event: str
    why: str
    state: State
    hours: float


def reasons(answers: Answers, state: State) -> frozenset[str]:
    """What is said of the state beyond what is said of such a node without any event. A state that was not judged as a
    whole says what its events say apart."""
    kind, events = state
    if state in answers:
        return answers[state] - answers[kind, ()]
    return frozenset().union(*(answers[kind, (shown,)] for shown in events)) - answers[kind, ()]


class Fleet:
    """Adds up the years of nodes, as one tool that looks each `every` seconds has them."""

    def __init__(self, judge: Judge, answers: Answers, every: float = LOOK_SECONDS) -> None:
        self.judge = judge
        self.answers = answers
        self._every = every
        self._rng = random.Random(f"{judge.seed} polls")
        self.nodes: Counter[str] = Counter()
        self.healthy_hours: defaultdict[str, float] = defaultdict(float)
        self.fault_hours = 0.0
        self.drains: list[Drain] = []
        self.events: Counter[str] = Counter()

    def add(self, node: Node, year: Sequence[Span]) -> None:
        self.nodes[node.kind] += 1
        self.events.update(CLASSES[one.event].name for one in node.instances)
        for span in year:
            hours = (span.end - span.begin) / HOUR
            if span.fault:
                self.fault_hours += hours
            else:
                self.healthy_hours[node.kind] += hours
        self._false_drains(year)

    def _false_drains(self, year: Sequence[Span]) -> None:
        def critical(span: Span) -> bool:
            return not span.fault and not span.free and bool(reasons(self.answers, span.state))

        for run in (list(run) for is_critical, run in groupby(year, critical) if is_critical):
            begin, end = run[0].begin, run[-1].end
            if self._rng.random() < min((end - begin) / self._every, 1.0):
                first = run[0].state
                why = min(reasons(self.answers, first))
                self.drains.append(Drain(self._blame(first), why, first, (end - begin) / HOUR))

    def _blame(self, state: State) -> str:
        kind, events = state
        alone = [shown for shown in events if reasons(self.answers, (kind, (shown,)))]
        return " and ".join(CLASSES[shown.event].name for shown in alone[:1] or events)


class Catch(NamedTuple):
    """Of a class of faults: variants that were caught of those there are, and the seconds until then."""

    caught: int
    all: int
    seconds: tuple[float, ...]


def catches(judge: Judge, answers: Answers, nodes: Iterable[Node], every: float = LOOK_SECONDS) -> dict[str, Catch]:
    """By class of fault, over all faults of the fleet."""
    count: Counter[tuple[str, int, int]] = Counter(
        (node.kind, one.event, one.variant) for node in nodes for one in node.instances if CLASSES[one.event].fault
    )
    found: dict[str, Catch] = {}
    for (kind, event, variant), times in count.items():
        bounds = edges(judge.variant(kind, event, variant))
        begins = [
            begin
            for number, begin in enumerate(bounds[:-1])
            if reasons(answers, (kind, (Shown(event, variant, number),)))
        ]
        before = found.get(CLASSES[event].name, Catch(0, 0, ()))
        seconds = (begins[0] + every / 2,) * times if begins else ()
        found[CLASSES[event].name] = Catch(
            before.caught + (times if begins else 0), before.all + times, before.seconds + seconds
        )
    return found


def poisson_interval(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a Poisson mean (Garwood), by bisection."""
    alpha = (1 - confidence) / 2
    most = count + 10 * math.sqrt(count + 1) + 10
    low = 0.0 if count == 0 else _solve(lambda mean: 1 - _poisson_below(count - 1, mean), alpha, most)
    return low, _solve(lambda mean: 1 - _poisson_below(count, mean), 1 - alpha, most)


def _solve(rising: Callable[[float], float], value: float, most: float) -> float:
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2


def _poisson_below(count: int, mean: float) -> float:
    """P(X <= count)."""
    if mean <= 0:
        return 1.0
    terms = [number * math.log(mean) - mean - math.lgamma(number + 1) for number in range(count + 1)]
    top = max(terms)
    return min(1.0, math.exp(top) * sum(math.exp(term - top) for term in terms))
