"""The fleet's year: when each node has which event, and so for how long it is in which state."""

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from drains.events import HOUR, edges
from drains.fleet import KINDS
from drains.states import CLASSES, Judge, Shown, State, can_have

YEAR: Final = 365 * 24 * HOUR
MAX_AT_ONCE: Final = 3
"""The most events that a state has; of more than that the newest count."""


class Span(NamedTuple):
    """A node is in `state` from `begin` to `end`, in seconds of the year. `fault`: it has one, so that taking it out is
    right. `free`: nobody can do it wrong meanwhile."""

    begin: float
    end: float
    state: State
    fault: bool
    free: bool


class Instance(NamedTuple):
    begin: float
    event: int
    variant: int


class Node(NamedTuple):
    kind: str
    instances: tuple[Instance, ...]


def fleet(judge: Judge, nodes: int, variants: int) -> Iterator[Node]:
    """Draws the year of each node. Each event's begin is a Poisson process of its class's rate; how it looks is one of
    `variants` of the class on that kind of node."""
    rng = random.Random(f"{judge.seed} fleet")
    kinds = list(KINDS)
    weights = [KINDS[kind].share for kind in kinds]
    for _ in range(nodes):
        kind = rng.choices(kinds, weights)[0]
        drawn = []
        for event in can_have(kind):
            at = rng.expovariate(CLASSES[event].rate) * YEAR
            while at < YEAR:
                drawn.append(Instance(at, event, rng.randrange(variants)))
                at += rng.expovariate(CLASSES[event].rate) * YEAR
        yield Node(kind, tuple(sorted(drawn)))


def spans(judge: Judge, node: Node) -> list[Span]:
    """The states of the node's year, in order, without gaps. While a fault is repaired, and where a fault begins, other
    events go on."""
    marks = {0.0, YEAR}
    parts: list[tuple[float, float, Shown, bool, float]] = []
    for one in node.instances:
        variant = judge.variant(node.kind, one.event, one.variant)
        bounds = edges(variant)
        for number, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
            low, high = one.begin + begin, min(one.begin + end, YEAR)
            if low < high:
                fault = CLASSES[one.event].fault
                free = variant.not_judged > begin
                parts.append(
                    (
                        low,
                        high,
                        Shown(one.event, one.variant, number),
                        fault,
                        one.begin + variant.not_judged if free else 0.0,
                    )
                )
                marks |= {low, high}
    parts.sort()
    found: list[Span] = []
    active: list[tuple[float, float, Shown, bool, float]] = []
    ordered, at = sorted(marks), 0
    for begin, end in zip(ordered, ordered[1:], strict=False):
        active = [part for part in active if part[1] > begin]
        while at < len(parts) and parts[at][0] <= begin:
            active.append(parts[at])
            at += 1
        distinct = {part[2].event: part for part in active}  # two of one class: the later one
        shown = tuple(sorted(part[2] for part in sorted(distinct.values(), key=lambda part: part[0])[-MAX_AT_ONCE:]))
        found.append(
            Span(
                begin, end, (node.kind, shown), any(part[3] for part in active), any(part[4] > begin for part in active)
            )
        )
    return found
