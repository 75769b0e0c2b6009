"""Which ranks do the same work: those in the same place of the pipeline, the tensor and the expert groups. Pure.

Data-parallel replicas are each other's peers. Ranks in different places are not: a stage may have more layers than
another, and an expert more tokens. A rank's indices are those in its groups, which live ranks declare in their facts
and recordings in their lines; where nobody declared them, those that the collectives show. Ranks that send to each
other both ways, step after step, are the stages of one pipeline, which run in the order of their numbers. The members
of a group that does all-to-all hold different experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.majority import grouped
from laggard.locate.collectives import Collectives
from laggard.locate.medians import distinct, numbered
from laggard.locate.shares import HALF
from laggard.rankfile.fact_names import GROUPS, Run, index_in, members_of, parse_runs, size_of
from laggard.wire.ranks import RankRow

REPLICAS: Final = ""
"""The role of groups whose members do the same work on different data, or of which nothing is known."""

PIPELINE, TENSOR, EXPERTS, CONTEXT = "pp", "tp", "ep", "cp"

_ROLE_WORDS = (  # the first that fits: an expert's data-parallel group is one of data parallelism
    (REPLICAS, {"dp", "data", "ddp", "fsdp", "hsdp", "zero", "shard", "replicate", "replica", "world", "edp"}),
    (PIPELINE, {"pp", "pipe", "pipeline"}),
    (TENSOR, {"tp", "mp", "tensor", "model"}),
    (EXPERTS, {"ep", "expert", "experts", "moe"}),
    (CONTEXT, {"cp", "context", "sp", "sequence"}),
)

_STEADY_ROLES = {PIPELINE, TENSOR, CONTEXT}

Indices = Mapping[str, int]
"""The index of a rank in its group of each role in which members do different work."""


@lru_cache(1024)
def canonical_role(name: str) -> str | None:
    """The role that a name stands for, as `pp` for `PIPELINE_MODEL_PARALLEL_GROUP` and REPLICAS for `mesh_dp`; None
    where it says nothing."""
    words = set(re.split("[^a-z]+", name.lower()))
    if "expert" in words and not words & {"tp", "tensor"}:
        words -= {"mp", "model"}  # EXPERT_MODEL_PARALLEL_GROUP
    return next((role for role, known in _ROLE_WORDS if words & known), None)


class Seat(NamedTuple):
    """The place of a rank in a group of so many members, whose role is as declared."""

    role: str
    size: int
    place: int


def own_indices(seats: Iterable[Seat], declared: Indices, shown: Indices) -> dict[str, int]:
    """The indices of a rank: the `declared` ones; else its index in the largest group of a role; else those `shown` by
    whom it exchanges with. Two ranks that send to each other are the neighbours in a pipeline, and no group of it where
    it is known to be longer."""
    known = sorted(((canonical_role(it.role), it.size, it.place) for it in seats if it.size > 1), key=lambda it: it[1])
    is_shown = PIPELINE in shown and all(size == 2 for role, size, _ in known if role == PIPELINE)
    found = dict(shown)
    found.update((role, index) for role, _, index in known if role)
    for name, index in declared.items():
        if (role := canonical_role(name)) != REPLICAS:
            found[role or name] = index
    return {**found, PIPELINE: shown[PIPELINE]} if is_shown else found


class Positions(NamedTuple):
    """[R], ascending by rank: the same number for ranks that do the same work, which of them have a stage of a pipeline
    to themselves, each one's stage, and the same number for ranks that hold the same parameters; None where no rank
    says that any does other work. What hosts do by themselves, as loading input and logging, is alike within a stage,
    also where experts or parts of layers are not."""

    positions: NDArray[np.int32] | None = None
    alone: NDArray[np.bool_] | None = None
    stages: NDArray[np.int32] | None = None
    replicas: NDArray[np.int32] | None = None

    @classmethod
    def of(cls, indices: Sequence[Indices]) -> Positions:
        classes = position_classes(indices)
        stages = np.array([each.get(PIPELINE, 0) for each in indices], np.int32)
        replicas = numbered([frozenset(it for it in each.items() if it[0] != CONTEXT) for each in indices])
        # Nobody else does the same work, and it is the same in each step, as that of an expert is not.
        staged = np.array([PIPELINE in each and each.keys() <= _STEADY_ROLES for each in indices], np.bool_)
        alone = staged & (np.bincount(classes)[classes] == 1) if len(classes) else staged
        return cls(classes, alone, stages, replicas.astype(np.int32))


def position_classes(indices: Sequence[Indices]) -> NDArray[np.int32]:
    """[R]: a number for each rank, the same for ranks that do the same work. The ranks of a tensor group do: they
    compute equal parts of the same layers."""
    return numbered([frozenset(it for it in each.items() if it[0] != TENSOR) for each in indices]).astype(np.int32)


# The places of ranks in the process groups of one kind, whatever the groups are for.
#
# Groups of one kind have the same role and the same pattern of members: 0 and 2, 1 and 3, 4 and 6 and so on are one
# kind. A program that divides work by place, as context parallelism does, gives the same place of each such group the
# same share. Of groups whose members do the same work on different data nothing of the sort is to be expected.

MAX_KINDS: Final = 16
"""The most kinds of groups that are kept, those with the most groups first."""


class GroupPlaces(NamedTuple):
    """The groups of one kind, none of which have a rank in common. `place` [R]: the place of each rank in its group,
    from 0; -1 where it is in none. `size`: the members of each."""

    role: str  # as declared; empty where it was not
    size: int
    place: NDArray[np.int32]


def group_places(
    ranks: Sequence[int], world_size: int, groups: Iterable[tuple[str, tuple[int, ...]]]
) -> tuple[GroupPlaces, ...]:
    """The kinds of `groups`, of which each is a role as declared and its members, with the places of `ranks`,
    ascending, in them. With a single group nothing tells a place from the rank that has it, and of groups of more than
    half of the ranks there cannot be several."""
    own = sorted({each for each in groups if 2 <= len(each[1]) <= world_size // 2})
    kinds = grouped(own, lambda it: (it[0], tuple(after - before for before, after in pairwise(it[1]))))
    found = []
    for (role, _), alike in kinds.items():
        seats = {rank: index for _, members in alike for index, rank in enumerate(members)}
        size = len(alike[0][1])
        is_disjoint = len(seats) == size * len(alike)
        if canonical_role(role) != REPLICAS and len(alike) > 1 and is_disjoint:
            place = np.array([seats.get(rank, -1) for rank in ranks], np.int32)
            found.append((len(alike), GroupPlaces(role, size, place)))
    return tuple(places for _, places in sorted(found, key=lambda it: -it[0])[:MAX_KINDS])


MAX_GROUPS: Final = 64
"""The most groups of a rank: as many as a rank file has lanes."""


class DeclaredGroup(NamedTuple):
    """A process group as a rank's facts have it, with the rank's own `place`."""

    name: str
    role: str
    runs: tuple[Run, ...]
    place: int


def declared_groups(row: RankRow) -> Iterator[DeclaredGroup]:
    """The groups in the facts of a rank. What is none, or does not hold the rank, is passed over."""
    found = row.facts.get(GROUPS)
    if not isinstance(found, dict) or len(found) > MAX_GROUPS:
        return
    for name, value in found.items():
        runs = parse_runs(value, row.world_size)
        place = index_in(runs, row.rank)
        if place is not None:
            yield DeclaredGroup(name, name.partition(":")[0], runs, place)


class LiveLayout:
    """What the ranks of a job tell of their process groups, as far as it says who does which work. It stays the same
    until other ranks come, or tell of other groups. `indices`: of each rank, ascending."""

    def __init__(self, rows: Mapping[int, RankRow]) -> None:
        declared = {rank: tuple(declared_groups(rows[rank])) for rank in sorted(rows)}
        shown = _by_rank((PIPELINE, members) for members in _connected(_declared_pairs(declared.values())))
        seats = {rank: [Seat(it.role, size_of(it.runs), it.place) for it in each] for rank, each in declared.items()}
        self.indices = {rank: own_indices(each, {}, shown.get(rank, {})) for rank, each in seats.items()}
        self.positions = Positions.of([*self.indices.values()]) if any(self.indices.values()) else Positions()
        size = max((row.world_size for row in rows.values()), default=0)
        several = {(it.role, it.runs) for each in declared.values() for it in each if 2 * size_of(it.runs) <= size}
        self.group_places = group_places([*declared], size, ((role, members_of(runs)) for role, runs in several))


def _declared_pairs(declared: Iterable[Sequence[DeclaredGroup]]) -> Iterator[tuple[int, int]]:
    """The pairs that send to each other, of ranks that are in no larger pipeline."""
    for groups in declared:
        pipelines = [group.runs for group in groups if canonical_role(group.role) == PIPELINE]
        if all(size_of(runs) == 2 for runs in pipelines):
            yield from ((one, other) for one, other in map(members_of, pipelines))


ALL_TO_ALL = OPS.index("all_to_all")


def indices_shown_by(collectives: Collectives, ranks: NDArray[np.int64]) -> dict[int, dict[str, int]]:
    """The index of each of `ranks` [R], ascending, in its pipeline and in its group of experts, where it is in one."""
    pipelines = ((PIPELINE, members) for members in _connected(_both_ways(collectives, ranks)))
    return _by_rank((*pipelines, *((EXPERTS, members) for members in _expert_groups(collectives, ranks))))


def _by_rank(groups: Iterable[tuple[str, Sequence[int]]]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for role, members in groups:
        for index, rank in enumerate(members):
            found.setdefault(rank, {})[role] = index
    return found


def _both_ways(collectives: Collectives, ranks: NDArray[np.int64]) -> set[tuple[int, int]]:
    """The pairs that send to each other, those too that are not seen themselves: without one, those behind it would
    count as other stages. A ring in which everybody sends one way, as in context parallelism, is no pipeline: its
    members do equal work."""
    rows = np.flatnonzero((collectives.peer >= 0) & collectives.is_message)
    source, target = (ends[rows] for ends in collectives.ends(ranks))
    width = int(max(source.max(initial=0), target.max(initial=0))) + 1
    ways = {divmod(way, width) for way in _regular(source * width + target, collectives.step[rows])}
    return {way for way in ways if way[::-1] in ways}


def _expert_groups(collectives: Collectives, ranks: NDArray[np.int64]) -> Iterator[Sequence[int]]:
    """The members of each group that does all-to-all, as declared, else those that are seen, where there are several:
    one of all ranks leaves nobody to compare with."""
    rows = np.flatnonzero(collectives.op == ALL_TO_ALL)
    regular = _regular(collectives.group[rows].astype(np.int64), collectives.step[rows])
    for number in regular if len(regular) > 1 else ():
        seen = distinct(collectives.column[rows[collectives.group[rows] == number]])
        yield collectives.groups[number].ranks or ranks[seen].tolist()


def _regular(keys: NDArray[np.int64], steps: NDArray[np.int64]) -> list[int]:
    """Those of `keys` [N] that stand in most of the steps."""
    if not len(keys):
        return []
    pairs = distinct(np.stack((keys, steps)), axis=1)
    found, count = np.unique(pairs[0], return_counts=True)
    regular: list[int] = found[count >= HALF * len(distinct(steps))].tolist()
    return regular


def _connected(pairs: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """The ranks that pairs connect, ascending."""
    neighbours: dict[int, set[int]] = {}
    for one, other in pairs:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    while neighbours:
        members, waiting = set[int](), [next(iter(neighbours))]
        while waiting:
            rank = waiting.pop()
            if rank not in members:
                members.add(rank)
                waiting += neighbours.pop(rank)
        yield sorted(members)
