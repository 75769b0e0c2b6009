"""The ranks and nodes that rows of a digest stand for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laggard.model import MAX_NAMED_RANKS
from laggard.rankfile.members import parse_runs
from laggard.wire.digest import DigestRow

_WORLD = 1 << 20


def ranks_of(row: DigestRow, most: int = MAX_NAMED_RANKS) -> Iterable[int]:
    """The first `most` ranks of a row."""
    left = most
    for run in parse_runs(list(row.ranks), _WORLD):
        for place in range(min(run.length, left)):
            yield run.first + place * run.stride
        left -= min(run.length, left)


def named_ranks(hit: Sequence[DigestRow], rows: Sequence[DigestRow]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ranks of the rows `hit`, MAX_NAMED_RANKS at most, and the nodes of which all of `rows` are among them."""
    ranks = sorted({rank for row in hit for rank in ranks_of(row)})[:MAX_NAMED_RANKS]
    those = {row.ranks for row in hit}
    nodes = dict.fromkeys(row.node for row in hit if row.node)
    whole = (node for node in nodes if all(row.ranks in those for row in rows if row.node == node))
    return tuple(ranks), tuple(name for name in whole if name)
