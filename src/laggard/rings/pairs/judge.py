"""The nodes and links that are slow, by the times of all-reduces between two nodes. Pure.

A pair is as slow as the slowest of its two nodes and the link between them. So the best time that a node has had with
anybody is an upper bound on its own part: the node is good if that is usual, whatever its other pairs showed. A node
that is slow with several good ones is slow itself; a pair of good nodes that is slow, however often it is measured, has
a slow link. Noise only makes times longer, and the best of several is what counts.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from laggard.rings.judge import Centre, centre_of

Pair = tuple[int, int]
"""Two nodes, the lower number first."""

Times = Mapping[Pair, tuple[float, ...]]
"""The seconds that each pair took, each time that it was measured; infinite where it failed."""

PARTNERS: Final = 3
"""The number of good nodes with which a node must have been slow: one may have a slow link to it, one may have been
disturbed."""

REPEATS: Final = 3
"""The number of times that a link must have been slow."""

CHANCE: Final = 0.005
"""The largest probability with which noise alone makes any node, or any link, look as slow as the one that is
accused."""

_SUSPECT_DEVIATIONS: Final = 2.0
"""The number of robust standard deviations from which on a time is looked into. What then counts is CHANCE."""


class Judgement(NamedTuple):
    """The ratios are times over the usual time; infinite: it failed each time."""

    centre: Centre | None
    """The centre of the nodes' best times; None: too few to tell what is usual."""
    good: frozenset[int]
    slow_nodes: Mapping[int, float]
    slow_links: Mapping[Pair, float]
    suspect_nodes: tuple[int, ...]
    """Slow so far, measured with good nodes too few times to tell."""
    suspect_links: tuple[Pair, ...]
    """Slow so far, measured too few times to tell."""


def judge_pairs(times: Times) -> Judgement:
    best = {pair: min(seconds) for pair, seconds in times.items() if seconds}
    nodes = node_bests(best)
    centre = centre_of(nodes.values(), _SUSPECT_DEVIATIONS)
    if centre is None:
        return Judgement(None, frozenset(), {}, {}, (), ())
    good = frozenset(node for node, seconds in nodes.items() if seconds <= centre.limit)
    links = {pair: seconds for pair, seconds in best.items() if good.issuperset(pair)}
    usual = centre_of(links.values(), _SUSPECT_DEVIATIONS) or centre
    noise = _Noise(times, links, max(usual.limit, centre.limit))
    bad = {node: nodes[node] for node in sorted(set(nodes) - good)}
    slow = {pair: links[pair] for pair in sorted(links) if links[pair] > noise.limit}
    proved_nodes = {node for node in bad if _is_node_proved(node, bad[node], times, good, noise, len(nodes))}
    proved_links = {
        pair
        for pair, seconds in slow.items()
        if len(times[pair]) >= REPEATS and noise.is_no_chance(seconds, len(times[pair]), len(links))
    }
    return Judgement(
        centre,
        good,
        {node: bad[node] / centre.seconds for node in bad if node in proved_nodes},
        {pair: slow[pair] / usual.seconds for pair in slow if pair in proved_links},
        tuple(node for node in bad if node not in proved_nodes),
        tuple(pair for pair in slow if pair not in proved_links),
    )


def _is_node_proved(
    node: int, seconds: float, times: Times, good: frozenset[int], noise: _Noise, hypotheses: int
) -> bool:
    """Whether a node whose best time is `seconds` was measured with good ones often enough to say that it is slow."""
    partners = good_partners(times, good).get(node, set())
    measured = sum(len(times[pair]) for pair in times if node in pair and not good.isdisjoint(pair))
    return len(partners) >= min(PARTNERS, len(good)) and noise.is_no_chance(seconds, measured, hypotheses)


class _Noise:
    """The spread of the times of good pairs, each taken by itself. A pair that was too long each time has a slow link,
    and is no noise."""

    def __init__(self, times: Times, links: Mapping[Pair, float], limit: float) -> None:
        self.limit = limit
        taken = (times[pair] for pair, best in links.items() if best <= limit or len(times[pair]) == 1)
        self._seconds = sorted(seconds for each in taken for seconds in each)

    def is_no_chance(self, seconds: float, measured: int, hypotheses: int) -> bool:
        """Whether it is too unlikely that noise makes one of so many `hypotheses` take `seconds` or longer each of the
        times that it was `measured`."""
        longer = len(self._seconds) - bisect.bisect_left(self._seconds, seconds)
        share = (longer + 1) / (len(self._seconds) + 2)
        return hypotheses * share**measured <= CHANCE


def node_bests(best: Mapping[Pair, float]) -> dict[int, float]:
    """Returns each node's best time with anybody."""
    nodes: dict[int, float] = {}
    for pair, seconds in best.items():
        for node in pair:
            nodes[node] = min(nodes.get(node, math.inf), seconds)
    return nodes


def good_partners(pairs: Iterable[Pair], good: frozenset[int]) -> dict[int, set[int]]:
    """Returns with which good nodes each node was measured."""
    partners: dict[int, set[int]] = {}
    for one, other in pairs:
        if other in good:
            partners.setdefault(one, set()).add(other)
        if one in good:
            partners.setdefault(other, set()).add(one)
    return partners


def culprits_of(pairs: Iterable[Pair]) -> tuple[tuple[int, ...], tuple[Pair, ...]]:
    """Returns the nodes, and the links where there is no such node, that explain the faulty `pairs`: who is in most of
    them first."""
    left = set(pairs)
    nodes: list[int] = []
    while left:
        counts = {node: sum(node in pair for pair in left) for node in {node for pair in left for node in pair}}
        node = max(sorted(counts), key=lambda node: counts[node])
        if counts[node] < 2:
            break
        nodes.append(node)
        left = {pair for pair in left if node not in pair}
    return tuple(nodes), tuple(sorted(left))
