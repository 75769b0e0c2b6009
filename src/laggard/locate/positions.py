"""Finds which ranks do the same work: those in the same place of the pipeline, the tensor and the expert groups. Pure.

Data-parallel replicas are each other's peers. Ranks in different places are not: a stage may have more layers than
another, and an expert more tokens. Places are those declared, else those that the collectives show
(inferred_positions.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

REPLICAS: Final = ""
"""The role of groups whose members do the same work on different data, or of which nothing is known."""

TENSOR: Final = "tp"

PIPELINE: Final = "pp"

_ROLE_WORDS = (  # the first that fits: an expert's data-parallel group is one of data parallelism
    (REPLICAS, {"dp", "data", "ddp", "fsdp", "hsdp", "zero", "shard", "replicate", "replica", "world", "edp"}),
    (PIPELINE, {"pp", "pipe", "pipeline"}),
    (TENSOR, {"tp", "mp", "tensor", "model"}),
    ("ep", {"ep", "expert", "experts", "moe"}),
    ("cp", {"cp", "context", "sp", "sequence"}),
)

_STEADY_ROLES = {PIPELINE, TENSOR, "cp"}

MIN_PEERS = 4

Key = tuple[tuple[str, int], ...]


class Membership(NamedTuple):
    """One process group that a rank is in."""

    role: str
    ranks: tuple[int, ...]


class Place(NamedTuple):
    """The position of a rank: its index in its group of each role and its groups, as far as they were declared, and its
    index by role as far as it was inferred."""

    position: Mapping[str, int]
    groups: Sequence[Membership]
    inferred: Mapping[str, int] = MappingProxyType({})

    def index_by_role(self, rank: int) -> dict[str, int]:
        """The rank's index in its group of each role in which members do different work. Where no position was
        declared, its place in the largest group of the role that has it; else what was inferred. Two ranks that send to
        each other are the neighbours in a pipeline, and no group of it where it is known to be longer."""
        found = dict(self.inferred)
        pairs = PIPELINE in found and all(len(each.ranks) == 2 for each in self._groups_of(PIPELINE))
        known = {PIPELINE} if pairs else set[str]()
        for group in sorted(self.groups, key=lambda group: len(group.ranks)):
            role = canonical_role(group.role)
            if role and rank in group.ranks and role not in known:
                found[role] = group.ranks.index(rank)
        for name, index in self.position.items():
            role = canonical_role(name)
            if role != REPLICAS and role not in known:
                found[role or name] = index
        return found

    def _groups_of(self, role: str) -> Iterator[Membership]:
        return (group for group in self.groups if canonical_role(group.role) == role)


@lru_cache(1024)
def canonical_role(name: str) -> str | None:
    """The role that a name stands for, as `pp` for `PIPELINE_MODEL_PARALLEL_GROUP` and REPLICAS for `mesh_dp`; None
    where it says nothing."""
    words = set(re.split("[^a-z]+", name.lower()))
    if "expert" in words and not words & {"tp", "tensor"}:
        words -= {"mp", "model"}  # EXPERT_MODEL_PARALLEL_GROUP
    return next((role for role, known in _ROLE_WORDS if words & known), None)


NOWHERE = Place({}, ())


def position_classes(ranks: Sequence[int], places: Sequence[Place]) -> NDArray[np.int32]:
    """[R]: a number for each rank, the same for ranks that do the same work. Where fewer than MIN_PEERS do, the ranks
    of a tensor group count as peers of each other, too: they compute equal parts of the same layers."""
    keys = [tuple(sorted(place.index_by_role(rank).items())) for rank, place in zip(ranks, places, strict=True)]
    counts = Counter(keys)
    stages = [tuple(item for item in key if item[0] != TENSOR) for key in keys]
    smallest: dict[Key, int] = {}
    for key, stage in zip(keys, stages, strict=True):
        smallest[stage] = min(counts[key], smallest.get(stage, counts[key]))
    chosen = [stage if smallest[stage] < MIN_PEERS else key for key, stage in zip(keys, stages, strict=True)]
    numbers: dict[Key, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in chosen], np.int32)


def stages(ranks: Sequence[int], places: Sequence[Place]) -> NDArray[np.int32]:
    """[R]: the stage of each rank in its pipeline; 0 where there is none. What hosts do by themselves, as loading input
    and logging, is alike within a stage, also where experts or parts of layers are not."""
    return np.array(
        [place.index_by_role(rank).get(PIPELINE, 0) for rank, place in zip(ranks, places, strict=True)], np.int32
    )


def replica_classes(ranks: Sequence[int], places: Sequence[Place]) -> NDArray[np.int32]:
    """[R]: a number for each rank, the same for ranks that hold the same parameters as far as places tell: those in one
    place of the pipeline, the tensor and the expert groups. Ranks of a context group hold the same as each other."""
    keys = [
        tuple(sorted(item for item in place.index_by_role(rank).items() if item[0] != "cp"))
        for rank, place in zip(ranks, places, strict=True)
    ]
    numbers: dict[Key, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)


def alone_in_stage(ranks: Sequence[int], places: Sequence[Place], classes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[R]: the ranks that have a stage of a pipeline to themselves: nobody does the same work, and it is the same in
    each step, as that of an expert is not. `classes`: position_classes()."""
    _, number, count = np.unique(classes, return_inverse=True, return_counts=True)
    roles = (place.index_by_role(rank).keys() for rank, place in zip(ranks, places, strict=True))
    staged = np.array([PIPELINE in each and each <= _STEADY_ROLES for each in roles], np.bool_)
    found: NDArray[np.bool_] = staged & (count[number] == 1)
    return found
