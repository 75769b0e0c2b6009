"""The measurements of the newest ring between its nodes, small enough for a matrix. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from laggard.collector.web.documents import NewestRing
from laggard.wire.nodes import NodeRow, RingPairs

MAX_NODES: Final = 48
"""The most nodes in the matrix: the accused, then those in its slowest pairs."""


def newest_ring(rows: Iterable[NodeRow]) -> NewestRing:
    led = [
        (row.ring_age_seconds, row.ring_pairs) for row in rows if row.ring_pairs and row.ring_age_seconds is not None
    ]
    if not led:
        return NewestRing(None, None)
    age, pairs = min(led, key=lambda it: it[0])
    return NewestRing(age, _part(pairs), len(pairs.nodes), len(pairs.pairs))


def _part(ring: RingPairs) -> RingPairs:
    """The ring with MAX_NODES nodes at most, in the order that they had."""
    if len(ring.nodes) <= MAX_NODES:
        return ring
    accused = [*ring.slow_nodes, *(place for link in ring.slow_links for place in link)]
    slowest = sorted(ring.pairs, key=lambda pair: pair[2] or 0.0)
    wanted = dict.fromkeys([*accused, *(place for first, second, _ in slowest for place in (first, second))])
    chosen = sorted(list(wanted)[:MAX_NODES])
    place = {old: new for new, old in enumerate(chosen)}
    return RingPairs(
        nodes=tuple(ring.nodes[old] for old in chosen),
        size_bytes=ring.size_bytes,
        pairs=tuple((place[a], place[b], rate) for a, b, rate in ring.pairs if a in place and b in place),
        slow_nodes=tuple(place[it] for it in ring.slow_nodes if it in place),
        slow_links=tuple((place[a], place[b]) for a, b in ring.slow_links if a in place and b in place),
    )
