"""The ranks of a live job that do the same work, from the process groups in their facts. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.majority import grouped
from laggard.locate.inferred_positions import connected
from laggard.rankfile.fact_names import GROUPS, Run, index_in, members_of, parse_runs, size_of
from laggard.wire.ranks import RankRow

# Finds which ranks do the same work: those in the same place of the pipeline, the tensor and the expert groups. Pure.
#
# Data-parallel replicas are each other's peers. Ranks in different places are not: a stage may have more layers than
# another, and an expert more tokens. Places are those declared, else those that the collectives show
# (inferred_positions.py).

REPLICAS: Final = ""
"""The role of groups whose members do the same work on different data, or of which nothing is known."""

TENSOR: Final = "tp"

POSITIONS_PIPELINE: Final = "pp"

_ROLE_WORDS = (  # the first that fits: an expert's data-parallel group is one of data parallelism
    (REPLICAS, {"dp", "data", "ddp", "fsdp", "hsdp", "zero", "shard", "replicate", "replica", "world", "edp"}),
    (POSITIONS_PIPELINE, {"pp", "pipe", "pipeline"}),
    (TENSOR, {"tp", "mp", "tensor", "model"}),
    ("ep", {"ep", "expert", "experts", "moe"}),
    ("cp", {"cp", "context", "sp", "sequence"}),
)

_STEADY_ROLES = {POSITIONS_PIPELINE, TENSOR, "cp"}

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
        pairs = POSITIONS_PIPELINE in found and all(
            len(each.ranks) == 2 for each in self._groups_of(POSITIONS_PIPELINE)
        )
        known = {POSITIONS_PIPELINE} if pairs else set[str]()
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
        [place.index_by_role(rank).get(POSITIONS_PIPELINE, 0) for rank, place in zip(ranks, places, strict=True)],
        np.int32,
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
    staged = np.array([POSITIONS_PIPELINE in each and each <= _STEADY_ROLES for each in roles], np.bool_)
    found: NDArray[np.bool_] = staged & (count[number] == 1)
    return found


# The places of ranks in the process groups of one kind, whatever the groups are for. Pure.
#
# Groups of one kind have the same role and the same pattern of members: 0 and 2, 1 and 3, 4 and 6 and so on are one
# kind. A program that divides work by place, as context parallelism does, gives the same place of each such group the
# same share. Of groups whose members do the same work on different data nothing of the sort is to be expected.

MAX_KINDS: Final = 16
"""The most kinds of groups that are kept, those with the most groups first."""

MIN_GROUPS: Final = 2
"""With a single group nothing tells a place from the rank that has it."""


class GroupPlaces(NamedTuple):
    """The groups of one kind, none of which have a rank in common. `group` [R]: the number of each rank's group, and
    `place` [R]: its place in it, from 0; -1 where it is in none. `size`: the members of each."""

    role: str  # as declared; empty where it was not
    size: int
    group: NDArray[np.int32]
    place: NDArray[np.int32]


def group_places(ranks: Sequence[int], groups: Iterable[Membership]) -> tuple[GroupPlaces, ...]:
    """The kinds of `groups`, whose roles are as declared, with the places of `ranks`, ascending, in them."""
    kinds = grouped(sorted(set(filter(_may_divide_work, groups))), lambda it: (it.role, tuple(np.diff(it.ranks))))
    alike = [(role, [group.ranks for group in own]) for (role, _), own in kinds.items()]
    several = [each for each in alike if len(each[1]) >= MIN_GROUPS and _are_disjoint(each[1])]
    several.sort(key=lambda each: -len(each[1]))
    columns = {rank: column for column, rank in enumerate(ranks)}
    return tuple(_places(role, members, columns) for role, members in several[:MAX_KINDS])


def _may_divide_work(group: Membership) -> bool:
    return len(group.ranks) >= 2 and canonical_role(group.role) != REPLICAS


def _are_disjoint(groups: Sequence[tuple[int, ...]]) -> bool:
    members = [rank for group in groups for rank in group]
    return len(set(members)) == len(members)


def _places(role: str, groups: Sequence[tuple[int, ...]], columns: dict[int, int]) -> GroupPlaces:
    group, place = np.full(len(columns), -1, np.int32), np.full(len(columns), -1, np.int32)
    for number, members in enumerate(groups):
        for index, rank in enumerate(members):
            if rank in columns:
                group[columns[rank]], place[columns[rank]] = number, index
    return GroupPlaces(role, len(groups[0]), group, place)


MAX_GROUPS = 64
"""The most groups of a rank: as many as a rank file has lanes."""

PIPELINE = "pp"


class DeclaredGroup(NamedTuple):
    """A process group as a rank's facts have it."""

    name: str
    role: str
    runs: tuple[Run, ...]


def declared_groups(row: RankRow) -> Iterator[DeclaredGroup]:
    """The groups in the facts of a rank. What is none, or does not hold the rank, is passed over."""
    found = row.facts.get(GROUPS)
    if not isinstance(found, dict) or len(found) > MAX_GROUPS:
        return
    for name, value in found.items():
        runs = parse_runs(value, row.world_size)
        if index_in(runs, row.rank) is not None:
            yield DeclaredGroup(name, name.partition(":")[0], runs)


class LivePositions(NamedTuple):
    """[R], ascending by rank: the same number for ranks that do the same work, which of them have a stage of a pipeline
    to themselves, and each one's stage; None where no rank says that any does other work."""

    classes: NDArray[np.int32] | None = None
    alone: NDArray[np.bool_] | None = None
    stages: NDArray[np.int32] | None = None


class LiveLayout:
    """What the ranks of a job tell of their process groups, as far as it says who does which work. It stays the same
    until other ranks come, or tell of other groups."""

    def __init__(self, rows: Mapping[int, RankRow]) -> None:
        self._indices = indices_by_role(rows)
        self.positions = live_positions(self._indices)
        self.group_places = live_group_places(rows)

    @cached_property
    def replicas(self) -> NDArray[np.int32]:
        """[R], ascending by rank: the same number for ranks that hold the same parameters."""
        return replica_classes(list(self._indices), [Place(index, ()) for index in self._indices.values()])


def live_positions(indices: Mapping[int, Mapping[str, int]]) -> LivePositions:
    """The positions of ranks that have these places by role, as indices_by_role() has them."""
    if not any(indices.values()):
        return LivePositions()
    places = [Place(index, ()) for index in indices.values()]
    classes = position_classes(list(indices), places)
    return LivePositions(classes, alone_in_stage(list(indices), places, classes), stages(list(indices), places))


def live_group_places(rows: Mapping[int, RankRow]) -> tuple[GroupPlaces, ...]:
    """The places of the ranks, ascending, in groups of each kind that may divide work by them."""
    several = {
        (group.role, group.runs)
        for row in rows.values()
        for group in declared_groups(row)
        if 2 <= size_of(group.runs) <= row.world_size // 2 and canonical_role(group.role) != REPLICAS
    }
    return group_places(sorted(rows), (Membership(role, members_of(runs)) for role, runs in several))


def indices_by_role(rows: Mapping[int, RankRow]) -> dict[int, dict[str, int]]:
    """The place of each rank, ascending, by role in which members do different work; empty where it says of none."""
    found: dict[int, dict[str, int]] = {}
    pairs: set[tuple[int, int]] = set()
    for rank in sorted(rows):
        groups = list(declared_groups(rows[rank]))
        found[rank] = _index_by_role(rank, groups)
        pairs.update(_pairs(groups))
    for stage, rank in _stages(pairs):
        if rank in found:
            found[rank][PIPELINE] = stage
    return found


def _index_by_role(rank: int, groups: Sequence[DeclaredGroup]) -> dict[str, int]:
    """The rank's place in the largest group of each role in which members do different work. The two ends of a pipeline
    that nobody declared are no group of it."""
    found: dict[str, tuple[int, int]] = {}
    for group in groups:
        role, size = canonical_role(group.role), size_of(group.runs)
        index = index_in(group.runs, rank)
        if role and role != REPLICAS and index is not None and size > found.get(role, (1, 0))[0]:
            found[role] = size, index
    return {role: index for role, (_, index) in found.items()}


def _pairs(groups: Sequence[DeclaredGroup]) -> Iterator[tuple[int, int]]:
    """The pairs that send to each other, both ways, of a rank that is in no larger pipeline."""
    pipelines = [group for group in groups if canonical_role(group.role) == PIPELINE]
    if all(size_of(group.runs) == 2 for group in pipelines):
        for group in pipelines:
            one, other = members_of(group.runs)
            yield one, other
            yield other, one


def _stages(pairs: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The stage of each rank that pairs connect, by rank number."""
    for members in connected(pairs):
        yield from enumerate(sorted(members))
