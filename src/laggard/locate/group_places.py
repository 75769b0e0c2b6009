"""The places of ranks in the process groups of one kind, whatever the groups are for. Pure.

Groups of one kind have the same role and the same pattern of members: 0 and 2, 1 and 3, 4 and 6 and so on are one kind.
A program that divides work by place, as context parallelism does, gives the same place of each such group the same
share. Of groups whose members do the same work on different data nothing of the sort is to be expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.positions import REPLICAS, Membership, canonical_role

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
    kinds: dict[tuple[str, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for role, members in sorted({each for each in groups if _may_divide_work(each)}):
        kinds.setdefault((role, tuple(member - members[0] for member in members)), []).append(members)
    several = [each for each in kinds.items() if len(each[1]) >= MIN_GROUPS and _are_disjoint(each[1])]
    several.sort(key=lambda each: -len(each[1]))
    columns = {rank: column for column, rank in enumerate(ranks)}
    return tuple(_places(role, alike, columns) for (role, _), alike in several[:MAX_KINDS])


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
