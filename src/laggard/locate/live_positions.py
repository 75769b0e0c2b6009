"""The ranks of a live job that do the same work, from the process groups in their facts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.group_places import GroupPlaces, group_places
from laggard.locate.inferred_positions import connected
from laggard.locate.positions import (
    REPLICAS,
    Membership,
    Place,
    alone_in_stage,
    canonical_role,
    position_classes,
    replica_classes,
    stages,
)
from laggard.rankfile.fact_names import GROUPS
from laggard.rankfile.members import Run, index_in, members_of, parse_runs, size_of
from laggard.wire.ranks import RankRow

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
