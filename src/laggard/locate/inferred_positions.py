"""Infers which ranks do different work from what they send each other, where nobody declared it. Pure.

Ranks that send to each other both ways, step after step, are the stages of one pipeline, which run in the order of
their numbers. The members of a group that does all-to-all hold different experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.locate.collectives import Collectives
from laggard.locate.medians import distinct

SEND, RECV, ALL_TO_ALL = OPS.index("send"), OPS.index("recv"), OPS.index("all_to_all")
PIPELINE, EXPERTS = "pp", "ep"

REGULAR_SHARE = 0.5
"""The share of the steps that a group must occur in to belong to the work of each step."""


def inferred_indices(collectives: Collectives, ranks: NDArray[np.int64]) -> list[dict[str, int]]:
    """The index of each of `ranks` [R], ascending, in its pipeline and in its group of experts; empty where it is in
    none."""
    found: list[dict[str, int]] = [{} for _ in ranks]
    by_rank = dict(zip(ranks.tolist(), found, strict=True))
    for role, groups in ((PIPELINE, _pipelines(collectives, ranks)), (EXPERTS, _expert_groups(collectives, ranks))):
        for members in groups:
            for index, rank in enumerate(members):
                by_rank.get(rank, {})[role] = index
    return found


def _pipelines(collectives: Collectives, ranks: NDArray[np.int64]) -> Iterator[Sequence[int]]:
    """The ranks that are connected by sends, those too that are not seen themselves: without one, those behind it would
    count as other stages. A ring in which everybody sends one way, as in context parallelism, is no pipeline: its
    members do equal work."""
    rows = np.flatnonzero((collectives.peer >= 0) & np.isin(collectives.op, (SEND, RECV)))
    own, peer = ranks[collectives.column[rows]], collectives.peer[rows].astype(np.int64)
    sends = collectives.op[rows] == SEND
    source, target = np.where(sends, own, peer), np.where(sends, peer, own)
    width = int(max(source.max(initial=0), target.max(initial=0))) + 1
    ways = {divmod(way, width) for way in _regular(source * width + target, collectives.step[rows])}
    for members in connected({way for way in ways if way[::-1] in ways}):
        yield sorted(members)


def _expert_groups(collectives: Collectives, ranks: NDArray[np.int64]) -> Iterator[Sequence[int]]:
    """The members of each group that does all-to-all, as declared, else those that are seen, where there are several:
    one of all ranks leaves nobody to compare with."""
    rows = np.flatnonzero(collectives.op == ALL_TO_ALL)
    regular = _regular(collectives.group[rows].astype(np.int64), collectives.step[rows])
    if len(regular) < 2:
        return
    pairs = distinct(np.stack((collectives.group[rows], collectives.column[rows])), axis=1)
    for number in regular:
        yield collectives.groups[number].ranks or ranks[pairs[1, pairs[0] == number]].tolist()


def _regular(keys: NDArray[np.int64], steps: NDArray[np.int64]) -> list[int]:
    """Those of `keys` [N] that stand in most of the steps."""
    if not len(keys):
        return []
    pairs = distinct(np.stack((keys, steps)), axis=1)
    found, count = np.unique(pairs[0], return_counts=True)
    regular: list[int] = found[count >= REGULAR_SHARE * len(distinct(steps))].tolist()
    return regular


def connected(ways: set[tuple[int, int]]) -> Iterator[set[int]]:
    """The sets of ranks that ways connect."""
    neighbours: dict[int, set[int]] = {}
    for one, other in ways:
        neighbours.setdefault(one, set()).add(other)
    while neighbours:
        members, waiting = set[int](), [next(iter(neighbours))]
        while waiting:
            rank = waiting.pop()
            if rank not in members:
                members.add(rank)
                waiting += neighbours.pop(rank)
        yield members
