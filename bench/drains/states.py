"""Distinct states of nodes, and what laggard says of each. A state is a kind of node with the events that it shows,
each at one of its ages; it is judged once, however many hours some node is in it."""

import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from common.scratch import scratch

from drains import everyday_churn, recurring_churn, recurring_faults  # noqa: F401  their classes are those of CHURN and EVERYDAY
from drains.churn import CHURN
from drains.events import DAY, EventClass, Variant, edges
from drains.everyday_faults import EVERYDAY
from drains.faults import FAULTS
from drains.fleet import lay_out
from drains.laggard import LOOK_SECONDS, Laggard, Said
from drains.machine import Base, Machine
from drains.peers import PEERS

CLASSES: Final[tuple[EventClass, ...]] = (*CHURN, *FAULTS, *EVERYDAY)

LAGGARD, TOLD = "laggard", "laggard, warnings too"
TOOLS: Final = {LAGGARD: LOOK_SECONDS, TOLD: LOOK_SECONDS, **{name: seconds for name, (_, seconds) in PEERS.items()}}
"""The seconds between two looks of each tool. A warning drains nobody: its row says how much there is to read."""
_BY_DESIGN: Final = 10 * DAY
"""What a fit node shows for as long is how it is set up, and known to who configures a tool for it."""


class Shown(NamedTuple):
    """An event that a node shows: which class and variant, and in which of its spans of time."""

    event: int
    variant: int
    span: int


State = tuple[str, tuple[Shown, ...]]
"""A kind of node, and what it shows, the oldest first."""

Answers = Mapping[State, frozenset[str]]
"""The reasons to take a node out of service, by its state."""


class Judge:
    """Judges states of one seed in one process. Its nodes lie in `folder`."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self._folder = folder
        self._bases: dict[str, Base] = {}
        self._laggards: dict[str, Laggard] = {}
        self._variants: dict[tuple[str, int, int], Variant] = {}

    def base(self, kind: str) -> Base:
        if kind not in self._bases:
            self._bases[kind] = lay_out(kind, self._folder)
        return self._bases[kind]

    def variant(self, kind: str, event: int, number: int) -> Variant:
        key = (kind, event, number)
        if key not in self._variants:
            seed = f"{self.seed} {kind} {CLASSES[event].name} {number}"
            self._variants[key] = CLASSES[event].draw(seed, self.base(kind))
        return self._variants[key]

    def age(self, kind: str, shown: Shown) -> float:
        """An age within the span, nearer to its begin."""
        begin, end = edges(self.variant(kind, shown.event, shown.variant))[shown.span : shown.span + 2]
        return begin + min(0.25 * (end - begin), 20.0 if begin < 600 else 0.25 * (end - begin))

    def spans_of(self, kind: str, event: int, variant: int) -> int:
        return len(edges(self.variant(kind, event, variant))) - 1

    def is_free(self, kind: str, shown: Shown) -> bool:
        """Whether nobody can do the node wrong in this span."""
        variant = self.variant(kind, shown.event, shown.variant)
        return edges(variant)[shown.span] < variant.not_judged

    def machine(self, state: State, ago: float = 0.0) -> Machine:
        """The node as it is, or as it was so many seconds ago."""
        kind, events = state
        made = Machine(self.base(kind))
        ages = [(self.age(kind, shown) - ago, self.variant(kind, shown.event, shown.variant)) for shown in events]
        for age, variant in sorted(ages, key=lambda pair: -pair[0]):
            if age >= 0 or variant.steady or variant.set_up:
                variant.apply(made, age if variant.set_up else max(age, 0.0))
        return made

    def laggard(self, state: State) -> Said:
        kind = state[0]
        if kind not in self._laggards:
            self._laggards[kind] = Laggard(self.base(kind))
        counters = any(self.variant(kind, shown.event, shown.variant).counters for shown in state[1])
        machine = self.machine(state)
        return self._laggards[kind].judge(machine, (lambda ago: self.machine(state, ago)) if counters else None)

    def answers(self, state: State) -> dict[str, frozenset[str]]:
        """The reasons of each tool."""
        kind, events = state
        machine, said = self.machine(state), self.laggard(state)
        written_for = self.machine((kind, tuple(one for one in events if self._by_design(kind, one))), math.inf)
        others = {name: frozenset(rules(machine, written_for)) for name, (rules, _) in PEERS.items()}
        return {LAGGARD: said.critical, TOLD: said.told, **others}

    def _by_design(self, kind: str, shown: Shown) -> bool:
        variant = self.variant(kind, shown.event, shown.variant)
        return variant.set_up or (variant.steady and variant.lasts >= _BY_DESIGN and not CLASSES[shown.event].fault)

    def says(self, state: State) -> str:
        kind, events = state
        return " + ".join(
            f"{self.variant(kind, shown.event, shown.variant).says} ({_age(self.age(kind, shown))} ago)"
            for shown in events
        )


def _age(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def memory_folder() -> Path:
    """A fresh folder, in memory where that is possible: a state's files are written and restored thousands of times."""
    return Path(tempfile.mkdtemp(prefix="drains-", dir=scratch()))


@lru_cache(maxsize=1)
def _judge_of_process(seed: int, folder: str) -> Judge:
    return Judge(seed, Path(tempfile.mkdtemp(dir=folder)))


def _answer(seed: int, folder: str, states: Sequence[State]) -> list[tuple[State, dict[str, frozenset[str]]]]:
    judge = _judge_of_process(seed, folder)
    return [(state, judge.answers(state)) for state in states]


def answer_all(seed: int, states: Iterable[State], processes: int) -> dict[str, Answers]:
    """Each tool's answers to all states."""
    ordered = sorted(set(states))
    folder = memory_folder()
    parts = [ordered[at : at + 64] for at in range(0, len(ordered), 64)]
    try:
        with ProcessPoolExecutor(processes) as pool:
            done = pool.map(_answer, [seed] * len(parts), [str(folder)] * len(parts), parts)
            answered = {state: reasons for part in done for state, reasons in part}
        return {tool: {state: reasons[tool] for state, reasons in answered.items()} for tool in TOOLS}
    finally:
        shutil.rmtree(folder)


def can_have(kind: str) -> list[int]:
    """The classes of events that a kind of node can have."""
    return [at for at, one in enumerate(CLASSES) if not one.kinds or kind in one.kinds]
