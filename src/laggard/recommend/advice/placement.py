"""The placement of ranks when nodes have NICs of different kinds. Pure.

Holmes (arXiv 2312.03549) keeps each data-parallel group on nodes with NICs of one kind, and lets pipeline stages
meet at the border between kinds: data parallelism moves all gradients, a pipeline only activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Placement(NamedTuple):
    hosts: tuple[str, ...]
    """The hosts in the order of a hostfile: nodes of a kind follow one another."""
    kinds: tuple[tuple[str, int], ...]
    """Each kind with its number of nodes, in the same order: a border of the pipeline belongs between two of them."""


def mixed_groups(
    groups: Sequence[Sequence[int]], node_of_rank: Mapping[int, str], kind_of_node: Mapping[str, str]
) -> tuple[tuple[int, ...], ...]:
    """Returns the groups whose ranks are on nodes with NICs of different kinds. Nodes of unknown kind do not count."""
    return tuple(
        tuple(group)
        for group in groups
        if len({kind_of_node[node] for rank in group if (node := node_of_rank.get(rank, "")) in kind_of_node}) > 1
    )


def place(kind_of_node: Mapping[str, str]) -> Placement:
    """Returns the nodes sorted by kind, the kind of most nodes first."""
    counts: dict[str, int] = {}
    for kind in kind_of_node.values():
        counts[kind] = counts.get(kind, 0) + 1
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))
    hosts = [node for kind in kinds for node in sorted(kind_of_node) if kind_of_node[node] == kind]
    return Placement(tuple(hosts), tuple((kind, counts[kind]) for kind in kinds))


def stages_fit(placement: Placement, stages: int) -> bool:
    """Returns whether pipeline stages of equally many nodes have their borders where the kinds change."""
    if stages < 1 or len(placement.hosts) % stages:
        return False
    size = len(placement.hosts) // stages
    borders, total = [], 0
    for _, count in placement.kinds:
        total += count
        borders.append(total)
    return all(border % size == 0 for border in borders)
