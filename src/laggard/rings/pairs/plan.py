"""The nodes that are measured together in the next round: disjoint pairs. Pure.

Who is slow so far is paired with a node that is known to be good, a new one while there is one, and a link that was
slow is measured again. All others meet somebody new, in the order of a round-robin tournament. Nodes are told apart
after a few rounds, however many there are: each round halves, or better, who may be at fault. Links are another matter:
N nodes have N (N - 1) / 2 of them, N / 2 of which a round measures. All are measured of up to MAX_NODES_FOR_ALL_LINKS
nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from laggard.rings.pairs.judge import Judgement, Pair, Times, good_partners

MAX_NODES_FOR_ALL_LINKS: Final = 32
_CONFIRMING_ROUNDS: Final = 8
_CATCHING_UP_ROUNDS: Final = 4
"""The rounds for the links that the tournament left out while their nodes were confirming something."""


def exploring_rounds(nodes: int) -> int:
    """Returns in how many rounds nodes meet others just to be measured: all of them, or, of many nodes, about twice
    the logarithm of their number, so that no node has met slow ones alone."""
    if nodes <= MAX_NODES_FOR_ALL_LINKS:
        return nodes - 1 + nodes % 2
    return 2 * math.ceil(math.log2(nodes))


def next_round(nodes: Sequence[int], times: Times, judgement: Judgement, done: int) -> list[Pair]:
    """Returns the pairs of the round after `done` rounds; none: nothing is left to find out. `nodes` are those that
    take part."""
    exploring = exploring_rounds(len(nodes))
    if done >= exploring + _CONFIRMING_ROUNDS:
        return []
    free = set(nodes)
    pairs = list(_confirm(free, times, judgement))
    if done < exploring + (_CATCHING_UP_ROUNDS if len(nodes) <= MAX_NODES_FOR_ALL_LINKS else 0):
        pairs += _explore(nodes, free - set(judgement.slow_nodes), times, done)
    return sorted(pairs)


def _confirm(free: set[int], times: Times, judgement: Judgement) -> Iterator[Pair]:
    """Yields pairs that tell more of who is suspected; takes their nodes from `free`."""
    tried = good_partners(times, judgement.good)
    for node in judgement.suspect_nodes:
        own = tried.get(node, set())
        partners = sorted(judgement.good & free, key=lambda other: (other in own, _met(other, times)))
        if node in free and partners:
            free -= {node, partners[0]}
            yield _pair(node, partners[0])
    for pair in judgement.suspect_links:
        if free.issuperset(pair):
            free -= set(pair)
            yield pair


def _met(node: int, times: Times) -> tuple[int, int]:
    return sum(node in pair for pair in times), node


def _explore(nodes: Sequence[int], free: Collection[int], times: Times, number: int) -> Iterator[Pair]:
    """Yields new pairs of `free` nodes: those of the tournament's round, then any."""
    left = set(free)
    for pair in (*_tournament(nodes, number), *_any_pairs(sorted(left))):
        if left.issuperset(pair) and not times.get(pair):
            left -= set(pair)
            yield pair


def _tournament(nodes: Sequence[int], number: int) -> Iterator[Pair]:
    """Yields the pairs of a round by the circle method: after N - 1 rounds (N where N is odd) all have met."""
    places: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    turning = len(places) - 1
    for step in range((turning + 1) // 2):
        one = places[(number + step) % turning] if turning else None
        other = places[turning] if step == 0 else places[(number - step) % turning]
        if one is not None and other is not None:
            yield _pair(one, other)


def _any_pairs(nodes: Sequence[int]) -> Iterator[Pair]:
    if len(nodes) <= MAX_NODES_FOR_ALL_LINKS:
        for place, one in enumerate(nodes):
            for other in nodes[place + 1 :]:
                yield _pair(one, other)


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)
