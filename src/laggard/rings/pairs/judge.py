"""The nodes and links that are slow, by the times of all-reduces between two nodes. Pure.

A pair is as slow as the slowest of its two nodes and the link between them. So the best time that a node has had with
anybody is an upper bound on its own part: the node is good if that is usual, whatever its other pairs showed. A node
that is slow with several good ones is slow itself; a pair of good nodes that is slow, however often it is measured, has
a slow link. Noise only makes times longer, and the best of several is what counts.

Of the next round, who is slow so far is paired with a node that is known to be good, a new one while there is one, and
a link that was slow is measured again. All others meet somebody new, in the order of a round-robin tournament. Nodes
are told apart after a few rounds, however many there are: each round halves, or better, who may be at fault. Links are
another matter: N nodes have N (N - 1) / 2 of them, N / 2 of which a round measures. All are measured of up to
MAX_NODES_FOR_ALL_LINKS nodes.

A node that is suspected exchanges data with each peer, once in the first place of the pair and once in the second, and
so do the peers with one another. A pair is as slow as the slowest of its two nodes and the link between them. So where
the suspect is as fast in both places, with any peers, as peers are among themselves, it is acquitted: what was slow
lies elsewhere. Where it is slower with every peer in every place, the slowness goes where it goes.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, zip_longest
from typing import Final, Literal, NamedTuple

from laggard.rings.judge import MIN_RATIO, Centre, centre_of

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


Outcome = Literal["confirmed", "acquitted", "unknown"]

Places = tuple[int, int]
"""The node in the first place of a pair, and the node in the second."""

MIN_PEERS: Final = 2
"""The least number of peers: what is usual is measured among them."""

MIN_TURNS: Final = 2
"""The least number of times that each two nodes are measured in each place."""

MAX_TURNS: Final = 10
"""The number of turns after which it cannot be told."""


class SuspectJudgement(NamedTuple):
    """`ratio`: the suspect's best time over the usual one, of one that is acquitted in its slower place; infinite: it
    failed with each peer; None: not measured. `centre`: the usual time of peers among themselves, and the time from
    which on one is too long."""

    outcome: Outcome
    why: str
    ratio: float | None = None
    centre: Centre | None = None


def turn(suspect: int, nodes: Sequence[int]) -> list[Places]:
    """Returns what is measured in one turn: each two nodes in both places, those with the suspect among the others, so
    that what changes meanwhile changes both."""
    pairs = list(combinations(sorted(nodes), 2))
    with_it = [places for pair in pairs if suspect in pair for places in _both(pair)]
    without = [places for pair in pairs if suspect not in pair for places in _both(pair)]
    return [places for both in zip_longest(with_it, without) for places in both if places is not None]


def _both(pair: Places) -> tuple[Places, Places]:
    return pair, (pair[1], pair[0])


def judge_suspect(suspect: int, times: Mapping[Places, tuple[float, ...]]) -> SuspectJudgement:
    """`times`: the seconds of each all-reduce, by places; infinite where it failed."""
    among = [each for places, own in times.items() if suspect not in places for each in own]
    usual = min(among, default=math.inf)
    if math.isinf(usual):
        return SuspectJudgement("unknown", "its peers could not be measured among themselves, so nothing is usual")
    centre = Centre(usual, usual * MIN_RATIO)
    own = {places: seconds for places, seconds in times.items() if suspect in places and seconds}
    best = {places: min(seconds) for places, seconds in own.items()}
    peers = {node for places in own for node in places} - {suspect}
    first, second = (
        min((it for places, it in best.items() if places[at] == suspect), default=math.inf) for at in (0, 1)
    )
    if max(first, second) <= centre.limit:
        slow = {node for places, seconds in best.items() if seconds > centre.limit for node in places} & peers
        text = _acquitted_text(len(peers - slow), len(peers))
        return SuspectJudgement("acquitted", text, max(first, second) / usual, centre)
    if len(peers) < MIN_PEERS or len(best) < 2 * len(peers):
        return SuspectJudgement("unknown", f"it was not measured in both places with {MIN_PEERS} peers", None, centre)
    fastest = min(best.values())
    if fastest <= centre.limit:
        why = "it was as fast as its peers in one place, and not in the other"
    elif not _is_no_chance(fastest, among, own):
        why = "it was slow so far, and measured too few times to be sure"
    else:
        why = f"it was slower with each of {len(peers)} peers, in both places"
        return SuspectJudgement("confirmed", why, fastest / usual, centre)
    return SuspectJudgement("unknown", why, fastest / usual, centre)


def _is_no_chance(seconds: float, among: Sequence[float], own: Mapping[Places, Sequence[float]]) -> bool:
    """Whether noise is too unlikely to make all of the suspect's times as long as `seconds`, by how often it made the
    peers' own so long (as in judge.py, of one hypothesis)."""
    longer = sum(each >= seconds for each in among)
    share = (longer + 1) / (len(among) + 2)
    enough = all(len(each) >= MIN_TURNS for each in own.values())
    return enough and share ** sum(map(len, own.values())) <= CHANCE


def _acquitted_text(fast: int, peers: int) -> str:
    if fast == peers:
        return f"it was as fast with each of {peers} peers, in both places, as they are among themselves"
    return f"it was as fast in both places as its peers are among themselves, with {fast} of {peers} of them in both"


def judgement_of(suspect: int, nodes: Sequence[int], judged: SuspectJudgement) -> Judgement:
    """The same as a judgement of pairs, for what is made of one."""
    slow = {suspect: judged.ratio} if judged.outcome == "confirmed" and judged.ratio is not None else {}
    good = frozenset(node for node in nodes if node not in slow)
    return Judgement(judged.centre, good, slow, {}, (), ())


def without_places(times: Mapping[Places, tuple[float, ...]]) -> Times:
    """The times by pairs, whichever place each node had."""
    pairs: dict[Pair, tuple[float, ...]] = {}
    for (one, other), seconds in times.items():
        pair = (min(one, other), max(one, other))
        pairs[pair] = (*pairs.get(pair, ()), *seconds)
    return pairs
