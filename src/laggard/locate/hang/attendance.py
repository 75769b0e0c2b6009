"""Finds how each member stands to an operation that somebody has not finished, by what the devices have yet to finish;
and who the members of a group are. Pure.

Where nothing tells what a device has begun, it stands at the first thing that it has not finished. It may stand at what
was launched later as well, as at the buckets of gradients that are reduced beside the backward pass: it does where
another member of the earlier operation, that has not finished that one either, went on as far.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.locate.collectives import DeviceQueue, DeviceQueues, Launched, Operation
from laggard.locate.job_timings import JobTimings


class Standing(enum.Enum):
    """The ways in which a member stands to an operation."""

    DONE = enum.auto()
    CAME = enum.auto()  # its device stands at it, as far as anything tells
    NOT_BEGUN = enum.auto()  # its device has nothing else to finish before, and has not begun it
    BEHIND = enum.auto()  # it launched the operation, and its device has something else to finish before
    NOT_LAUNCHED = enum.auto()
    UNKNOWN = enum.auto()  # nothing tells


class _Passed(NamedTuple):
    """By how many places members went on beyond an operation that they have not finished: the most, who, and the most
    of all others."""

    most: int
    rank: int
    others: int


class Attendance:
    """The members of the operations of a job. What was found once is kept."""

    def __init__(self, queues: DeviceQueues) -> None:
        self._queues = queues
        self._by_rank = queues.by_rank
        self._found: dict[Operation, Mapping[Standing, frozenset[int]]] = {}
        self._late: dict[Operation, frozenset[int]] = {}
        self._passed: dict[Operation, _Passed] = {}

    def of(self, operation: Operation) -> Mapping[Standing, frozenset[int]]:
        """The members by how they stand to the operation; each kind of standing is there, if empty."""
        if operation not in self._found:
            found: dict[Standing, set[int]] = {standing: set() for standing in Standing}
            for member in self._queues.members(operation):
                found[self._standing(member, operation)].add(member)
            self._found[operation] = {standing: frozenset(members) for standing, members in found.items()}
        return self._found[operation]

    def late(self, operation: Operation) -> frozenset[int]:
        """The members that have yet to come."""
        if operation not in self._late:
            found = self.of(operation)
            self._late[operation] = found[Standing.NOT_LAUNCHED] | found[Standing.BEHIND] | found[Standing.NOT_BEGUN]
        return self._late[operation]

    def _standing(self, rank: int, operation: Operation) -> Standing:
        queue = self._by_rank.get(rank)
        if queue is None or not queue.knows(operation.lane):
            return Standing.UNKNOWN
        if operation.number > queue.last_numbers.get(operation.lane, -1):
            return Standing.NOT_LAUNCHED
        launched = queue.by_operation.get(operation)
        if launched is None:
            return Standing.DONE
        if launched.begun:
            return Standing.CAME
        is_first = launched in queue.first
        if launched.begun is False:
            return Standing.NOT_BEGUN if is_first else Standing.BEHIND
        if not queue.ordered:
            return self._standing_by_peers(queue, operation)
        return Standing.CAME if is_first or self._is_beside_all(rank, queue, launched) else Standing.BEHIND

    def _standing_by_peers(self, queue: DeviceQueue, operation: Operation) -> Standing:
        """The standing of a rank that tells no order of its launches. What others launched in an order, or finished,
        it launched in the same."""
        if queue.heads[operation.lane] != operation.number:
            return Standing.BEHIND
        if not queue.knows_messages:
            return Standing.UNKNOWN
        others = [each.operation for each in queue.first if each.operation != operation]
        if any(self._precedes(other, operation) for other in others):
            return Standing.BEHIND
        is_first = all(self._precedes(operation, other) for other in others)
        return Standing.CAME if is_first else Standing.UNKNOWN

    def _precedes(self, one: Operation, other: Operation) -> bool:
        """Whether some member of both launched `one` before the other, or finished it and not yet the other."""
        for rank in {*self._queues.members(one)} & {*self._queues.members(other)}:
            queue = self._by_rank.get(rank)
            after = queue.by_operation.get(other) if queue and queue.ordered else None
            if queue is None or after is None or not queue.knows(one.lane):
                continue
            before = queue.by_operation.get(one)
            is_done = before is None and queue.last_numbers.get(one.lane, -1) >= one.number
            if is_done or (before is not None and before.position < after.position):
                return True
        return False

    def _is_beside_all(self, rank: int, queue: DeviceQueue, launched: Launched) -> bool:
        """Whether the operation waits for none of what its rank launched before: it is the first of its lane, and
        others passed each of those as far as this."""
        lane, number = launched.operation
        if queue.heads[lane] != number:
            return False
        earlier = (each for each in queue.open if each.position < launched.position)
        return all(self._was_passed(rank, each, launched.position - each.position) for each in earlier)

    def _was_passed(self, rank: int, launched: Launched, by: int) -> bool:
        operation = launched.operation
        if operation not in self._passed:
            self._passed[operation] = self._passed_by(operation)
        passed = self._passed[operation]
        return (passed.others if passed.rank == rank else passed.most) >= by

    def _passed_by(self, operation: Operation) -> _Passed:
        went_on = [(-1, -1), (-1, -1)]
        for rank in self._queues.members(operation):
            queue = self._by_rank.get(rank)
            own = queue.by_operation.get(operation) if queue and queue.ordered else None
            if queue is not None and own is not None:
                went_on.append((queue.newest_done - own.position, rank))
        (most, rank), (others, _) = sorted(went_on, reverse=True)[:2]
        return _Passed(most, rank, others)


_NAME: Final = re.compile(r"[a-z]+:(\d+)-(\d+)(?:/(\d+))?(?:#.*)?")
"""The form of a group's name that spans its members, as `dp:0-6/2`: role, first rank, last rank, stride."""


class Members:
    """The members of a job's groups, as columns: as a recording declares them, else as the group's name spans them. A
    name that others gave may look like one that spans: `dp:0-4` may be two ranks."""

    def __init__(self, timings: JobTimings) -> None:
        self._columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
        groups = timings.collectives.groups if timings.collectives is not None else ()
        self._declared = {group.name: group.ranks for group in groups if group.ranks}

    def of(self, group: str) -> frozenset[int]:
        """Empty where neither tells. A rank may hang before its first collective in the group."""
        if group in self._declared:
            return frozenset(self._columns[rank] for rank in self._declared[group] if rank in self._columns)
        found = _NAME.fullmatch(group)
        if not found:
            return frozenset()
        first, last, stride = int(found[1]), int(found[2]), int(found[3] or 1)
        spanned = ((rank, column) for rank, column in self._columns.items() if first <= rank <= last)
        return frozenset(column for rank, column in spanned if not (rank - first) % stride)
