"""Turns the dumps of a job's ranks into what their devices have yet to finish, and finds which of their process
groups are one. Pure.

A dump has its records in the order of the launches. Collectives have a number in their group. Sends and receives are
counted here, by pair and direction: from the first where neither side has dropped any, else from the first that is not
done, since those that are done have met. What the recorder has dropped is done where the counts of the group, or the
oldest record that is left, say so.

A group's number is its process's own, and a name need not be the same everywhere: groups match by description and
members. Where several have both in common, they match in the order in which they were made. Where a dump does not tell
the members (gloo's), they match by description and name, and the members are the ranks that came to one of its
collectives.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from laggard.kit.majority import grouped
from laggard.locate.collectives import NEEDS_ALL, DeviceQueue, DeviceQueues, Lane, Launched, Operation, ProcessGroup
from laggard.recording.flight_recorder_dump import ANY_SOURCE, Dump, DumpedGroup, Row
from laggard.recording.records import UNKNOWN

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


DROPPED = -1
"""The position of what has no record any more: before all that has one."""


class _Record(NamedTuple):
    """A record in its lane. `number` is UNKNOWN where it is still to be counted."""

    lane: Lane
    number: int
    position: int
    op: int
    done: bool
    begun: bool


def queues_from_dumps(dumps: Sequence[Dump], matched: Groups) -> DeviceQueues:
    """The queues of the ranks that wrote `dumps`. The groups are those of `matched`, by their places there."""
    miscounted = miscounted_groups(dumps, matched)
    with_messages = _groups_with_messages(dumps, matched)
    whole = frozenset(dump.rank for dump in dumps if not dump.wrapped)
    by_rank = {}
    for column, dump in enumerate(dumps):
        records = tuple(_numbered(_records(dump, matched.places[column], matched), whole))
        by_rank[dump.rank] = _queue(dump, matched.places[column], records, miscounted, with_messages)
    return DeviceQueues(matched.groups, {rank: _believed(rank, by_rank, matched) for rank in by_rank})


def _believed(rank: int, by_rank: Mapping[int, DeviceQueue], matched: Groups) -> DeviceQueue:
    """The rank's queue. A dump that tells of no launch at all is not believed where others finished what nobody can
    finish without this rank: its recorder was off, or has been emptied."""
    queue = by_rank[rank]
    if queue.last_numbers or queue.is_unknown:
        return queue
    finished = {lane for other in by_rank.values() for lane in other.finished}
    needed = any(rank in matched.groups[lane.group].ranks for lane in finished)
    return dataclasses.replace(queue, is_unknown=needed)


def miscounted_groups(dumps: Sequence[Dump], matched: Groups) -> frozenset[int]:
    """The groups in which some rank counts batches of messages with the collectives: their numbers differ by rank."""
    return frozenset(matched.places[column][place] for column, dump in enumerate(dumps) for place in dump.miscounted)


def _groups_with_messages(dumps: Sequence[Dump], matched: Groups) -> frozenset[int]:
    """The groups in which some rank has messages: their counts are of these, too."""
    return frozenset(
        matched.places[column][place]
        for column, dump in enumerate(dumps)
        for place in set(dump.records.group[dump.records.source != UNKNOWN].tolist())
    )


def _records(dump: Dump, places: Sequence[int], matched: Groups) -> Iterator[_Record]:
    """The records that have a lane, in the order of the launches. Messages that are launched as one have one
    position."""
    position, before = UNKNOWN, None
    for place, row in enumerate(map(Row, *(column.tolist() for column in dump.records))):
        if before is None or not _are_launched_as_one(before, row):
            position = place
        before = row
        lane = _lane(dump.rank, row, places[row.group], matched)
        if lane is not None:
            yield _Record(lane, row.seq if row.source < 0 else UNKNOWN, position, row.op, row.done, row.begun)


def _are_launched_as_one(before: Row, row: Row) -> bool:
    """Whether the two are messages of one batch, or a send to a rank and a receive from it."""
    if row.group != before.group or min(row.source, before.source) < 0:
        return False
    is_exchange = (row.source, row.target) == (before.target, before.source)
    return row.batch == before.batch >= 0 or is_exchange


def _lane(rank: int, row: Row, group: int, matched: Groups) -> Lane | None:
    if row.source < 0:
        return Lane(group) if row.seq >= 0 else None
    members = matched.groups[group].ranks
    if not matched.declared[group] or max(row.source, row.target) >= len(members):
        return None
    pair = members[row.source], members[row.target]
    return Lane(-1, *pair) if rank in pair and pair[0] != pair[1] else None


def _numbered(records: Iterable[_Record], whole: frozenset[int]) -> Iterator[_Record]:
    """The records with numbers for messages. `whole`: the ranks that have dropped no record."""
    counts: dict[Lane, int] = {}
    for record in records:
        if record.lane.group >= 0:
            yield record
        elif not record.done or {record.lane.source, record.lane.target} <= whole:
            number = counts[record.lane] = counts.get(record.lane, -1) + 1
            yield record._replace(number=number)


def _queue(
    dump: Dump,
    places: Sequence[int],
    records: Sequence[_Record],
    miscounted: frozenset[int],
    with_messages: frozenset[int],
) -> DeviceQueue:
    usable = [record for record in records if record.lane.group not in miscounted]
    dropped, enqueued = _by_counts(dump, places, usable, miscounted | with_messages)
    last: dict[Lane, int] = dict(enqueued)
    for record in usable:
        last[record.lane] = max(record.number, last.get(record.lane, -1))
    finished: dict[Lane, int] = {}
    for record in usable:
        if record.done and record.op in NEEDS_ALL:
            finished[record.lane] = max(record.number, finished.get(record.lane, -1))
    has_records = bool(len(dump.records.seq))
    knows_messages = (has_records and not dropped) or not with_messages & set(places)
    may_have_dropped = dump.wrapped or (bool(enqueued) and not has_records)
    own = {Lane(place) for place in places} - {Lane(place) for place in miscounted}
    return DeviceQueue(
        open=(*dropped, *_open(dump, usable)),
        ordered=len(dropped) < 2 and knows_messages,
        last_numbers=last,
        unknown=frozenset(own - last.keys()) if may_have_dropped else frozenset(),
        is_unknown=not (has_records or enqueued or dump.groups) or _is_cut(dump, usable, dropped),
        knows_messages=knows_messages,
        newest_done=max((record.position for record in records if record.done), default=UNKNOWN),
        finished=finished,
        has_other=_waits_elsewhere(dump, records, miscounted),
        still_seconds=dump.still_seconds,
    )


def _open(dump: Dump, records: Sequence[_Record]) -> Iterator[Launched]:
    """What is not finished, in the order of the launches. NCCL launches a batch of collectives as one: they have a
    record each, and one number."""
    parts = grouped((it for it in records if not it.done), lambda it: Operation(it.lane, it.number))
    for operation, each in parts.items():
        begun = any(part.begun for part in each) if dump.timed else None
        yield Launched(operation, each[0].position, max(part.op for part in each), begun)


def _by_counts(
    dump: Dump, places: Sequence[int], records: Sequence[_Record], left_out: frozenset[int]
) -> tuple[list[Launched], dict[Lane, int]]:
    """What the counts tell of groups of which the first records are missing: the collectives that are not finished and
    have no record, and the last number of each such group."""
    first: dict[Lane, int] = {}
    for record in records:
        first[record.lane] = min(record.number, first.get(record.lane, record.number))
    opened, enqueued = [], {}
    for place, status in dump.status.items():
        group = places[place]
        head = max(status.completed, 0) + 1
        if group in left_out:
            continue
        if Lane(group) not in first or (dump.wrapped and head < first[Lane(group)]):
            enqueued[Lane(group)] = max(status.enqueued, 0)
            if status.enqueued >= head:
                opened.append(Launched(Operation(Lane(group), head), DROPPED, UNKNOWN, None))
    return opened, enqueued


def _is_cut(dump: Dump, records: Sequence[_Record], dropped: Sequence[Launched]) -> bool:
    """Whether what the recorder has dropped may not be finished either, and no count tells what of it is not."""
    oldest = next(iter(records), None)
    told = dropped or (oldest is not None and oldest.lane.group >= 0 and dump.status)
    return dump.wrapped and oldest is not None and not oldest.done and not told


def _waits_elsewhere(dump: Dump, records: Sequence[_Record], miscounted: frozenset[int]) -> bool:
    """Whether it has something to finish that cannot be compared with what others launched."""
    any_source = bool(((dump.records.source == ANY_SOURCE) & ~dump.records.done).any())
    return any_source or any(record.lane.group in miscounted and not record.done for record in records)
