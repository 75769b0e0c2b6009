"""Finds which process groups of several ranks' dumps are one group. Pure.

A group's number is its process's own, and a name need not be the same everywhere: groups match by description and
members. Where several have both in common, they match in the order in which they were made. Where a dump does not tell
the members (gloo's), they match by description and name, and the members are the ranks that came to one of its
collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from laggard.locate.collectives import ProcessGroup
from laggard.recording.flight_recorder.dump import Dump, DumpedGroup

WORLD = "default_pg"
NO_DESCRIPTION = ("", "undefined")


class Groups(NamedTuple):
    """The groups of a job. `places` has, for each dump, the place here of each of its groups. `declared`: of each
    group, whether a dump tells its members."""

    groups: tuple[ProcessGroup, ...]
    places: tuple[tuple[int, ...], ...]
    declared: tuple[bool, ...]


def match_groups(dumps: Sequence[Dump], world_size: int) -> Groups:
    """The groups of all `dumps`, each once."""
    keys: dict[tuple[object, ...], int] = {}
    first: list[DumpedGroup] = []
    came: list[set[int]] = []
    places = []
    for dump in dumps:
        own = []
        for group, key in zip(dump.groups, _keys(dump), strict=True):
            place = keys.setdefault(key, len(keys))
            if place == len(first):
                first.append(group)
                came.append(set())
            came[place].add(dump.rank)
            own.append(place)
        places.append(tuple(own))
    members = tuple(
        group.members or (tuple(range(world_size)) if group.description == WORLD else tuple(sorted(ranks)))
        for group, ranks in zip(first, came, strict=True)
    )
    names = _names(first, members)
    groups = tuple(
        ProcessGroup(name, _role(group), ranks) for name, group, ranks in zip(names, first, members, strict=True)
    )
    return Groups(groups, tuple(places), tuple(bool(group.members) or group.description == WORLD for group in first))


def _keys(dump: Dump) -> list[tuple[object, ...]]:
    """The keys by which the dump's groups match."""
    order = sorted(range(len(dump.groups)), key=lambda place: _made(dump.groups[place], place))
    alike: Counter[tuple[object, ...]] = Counter()
    keys: list[tuple[object, ...]] = [()] * len(order)
    for place in order:
        group = dump.groups[place]
        key = (group.description, group.members) if group.members else (group.description, group.name)
        keys[place] = (*key, alike[key])
        alike[key] += 1
    return keys


def _made(group: DumpedGroup, place: int) -> tuple[int, int]:
    """The key that sorts groups by when they were made: torch counts names up, unless it makes them from a hash."""
    return (int(group.name) if group.name.isdecimal() and len(group.name) < 10 else 1 << 31, place)


def _role(group: DumpedGroup) -> str:
    if group.description == WORLD:
        return "world"
    return "group" if group.description in NO_DESCRIPTION else group.description.lower()


def _names(groups: Sequence[DumpedGroup], members: Sequence[tuple[int, ...]]) -> list[str]:
    """`dp:0-6/2`, as in laggard's own recordings; with torch's name where several groups would be called the same."""
    plain = [f"{_role(group)}:{_members_text(ranks)}" for group, ranks in zip(groups, members, strict=True)]
    counts = Counter(plain)
    return [f"{name}#{group.name}" if counts[name] > 1 else name for name, group in zip(plain, groups, strict=True)]


def _members_text(members: Sequence[int]) -> str:
    if not members:
        return "?"
    first, last = members[0], members[-1]
    strides = {after - before for before, after in zip(members, members[1:], strict=False)}
    if len(strides) == 1 and (stride := strides.pop()) > 0:
        return f"{first}-{last}" + (f"/{stride}" if stride > 1 else "")
    return f"{first}-{last}({len(members)})" if len(members) > 1 else str(first)
