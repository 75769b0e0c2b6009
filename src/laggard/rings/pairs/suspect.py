"""Whether one node is slow that is suspected: it takes each of its peers' places among them. Pure.

The suspect exchanges data with each peer, once in the first place of the pair and once in the second, and so do the
peers with one another. A pair is as slow as the slowest of its two nodes and the link between them. So where the
suspect is as fast in both places, with any peers, as peers are among themselves, it is acquitted: what was slow lies
elsewhere. Where it is slower with every peer in every place, the slowness goes where it goes. Noise only makes times
longer, and the best of several is what counts (judge.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest
from typing import Final, Literal, NamedTuple

from laggard.rings.judge import MIN_RATIO, Centre
from laggard.rings.pairs.judge import CHANCE, Judgement, Pair, Times

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
