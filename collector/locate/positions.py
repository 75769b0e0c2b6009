"""Finds which ranks do the same work: those in the same place of the pipeline, the tensor and the expert groups. Pure.

Data-parallel replicas are each other's peers. Ranks in different places are not: a stage may have more layers than
another, and an expert more tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

REPLICA_ROLES = frozenset(("dp", "world", "fsdp", "ddp", "zero", "hsdp", "data", "replicate", "shard", "other", ""))
"""Roles of groups whose members do the same work on different data, or of which nothing is known."""


TENSOR_ROLES = frozenset(("tp", "mp"))
FEW_PEERS = 4

Key = tuple[tuple[str, int], ...]


class Membership(NamedTuple):
    """One process group that a rank is in."""

    role: str
    ranks: tuple[int, ...]


class Place(NamedTuple):
    """Where a rank stands, as far as it was declared: its index in its group of each role, and its groups."""

    position: Mapping[str, int]
    groups: Sequence[Membership]

    def index_by_role(self, rank: int) -> dict[str, int]:
        """The rank's index in its group of each role in which members do different work. Where no position was
        declared, its place in the largest group of the role that has it."""
        found: dict[str, int] = {}
        for group in sorted(self.groups, key=lambda group: len(group.ranks)):
            if rank in group.ranks:
                found[group.role] = group.ranks.index(rank)
        return {role: index for role, index in {**found, **self.position}.items() if role not in REPLICA_ROLES}


NOWHERE = Place({}, ())


def position_classes(ranks: Sequence[int], places: Sequence[Place]) -> NDArray[np.int32]:
    """[R]: a number for each rank, the same for ranks that do the same work. Where fewer than FEW_PEERS do, the ranks
    of a tensor group count as peers of each other, too: they compute equal parts of the same layers."""
    keys = [tuple(sorted(place.index_by_role(rank).items())) for rank, place in zip(ranks, places, strict=True)]
    counts = Counter(keys)
    stages = [tuple(item for item in key if item[0] not in TENSOR_ROLES) for key in keys]
    smallest: dict[Key, int] = {}
    for key, stage in zip(keys, stages, strict=True):
        smallest[stage] = min(counts[key], smallest.get(stage, counts[key]))
    chosen = [stage if smallest[stage] < FEW_PEERS else key for key, stage in zip(keys, stages, strict=True)]
    numbers: dict[Key, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in chosen], np.int32)
