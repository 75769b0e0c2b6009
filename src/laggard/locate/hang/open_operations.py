"""What each rank of a job that stands still has yet to finish, as dumps and recordings tell it, and who came. Pure.

Dumps tell what devices have yet to finish of what hosts launched far ahead. Where nothing tells what a device has begun,
it stands at the first thing that it has not finished. It may stand at what was launched later as well, as at the
buckets of gradients that are reduced beside the backward pass: it does where another member of the earlier operation,
that has not finished that one either, went on as far.

A recording holds each collective that a rank entered; one that it never left has no end, and the rank came to it. To
what another member finished all came, whatever is recorded of them: that needs every member.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.locate.collectives import (
    NEEDS_ALL,
    Collectives,
    DeviceQueue,
    DeviceQueues,
    Lane,
    Launched,
    Operation,
    ProcessGroup,
)
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import distinct

SEND, RECV = OPS.index("send"), OPS.index("recv")


class Stands(enum.Enum):
    """The ways in which a member stands to an operation."""

    DONE = enum.auto()
    CAME = enum.auto()  # its device stands at it, as far as anything tells
    NOT_BEGUN = enum.auto()  # its device has nothing else to finish before, and has not begun it
    BEHIND = enum.auto()  # it launched the operation, and its device has something else to finish before
    NOT_LAUNCHED = enum.auto()
    UNKNOWN = enum.auto()  # nothing tells


class Attendance:
    """The members of the operations of a job. What was found once is kept."""

    def __init__(self, queues: DeviceQueues) -> None:
        self._queues = queues
        self._by_rank = queues.by_rank
        self._found: dict[Operation, Mapping[Stands, frozenset[int]]] = {}
        self._passed: dict[Operation, list[tuple[int, int]]] = {}

    def of(self, operation: Operation) -> Mapping[Stands, frozenset[int]]:
        """The members by how they stand to the operation; each kind is there, if empty."""
        if operation not in self._found:
            found: dict[Stands, set[int]] = {stands: set() for stands in Stands}
            for member in self._queues.members(operation):
                found[self._stands(member, operation)].add(member)
            self._found[operation] = {stands: frozenset(members) for stands, members in found.items()}
        return self._found[operation]

    def _stands(self, rank: int, operation: Operation) -> Stands:
        queue = self._by_rank.get(rank)
        if queue is None or not queue.knows(operation.lane):
            return Stands.UNKNOWN
        if operation.number > queue.last_numbers.get(operation.lane, -1):
            return Stands.NOT_LAUNCHED
        launched = queue.by_operation.get(operation)
        if launched is None:
            return Stands.DONE
        if launched.begun:
            return Stands.CAME
        is_first = launched in queue.first
        if launched.begun is False:
            return Stands.NOT_BEGUN if is_first else Stands.BEHIND
        if not queue.ordered:
            return self._stands_by_peers(queue, operation)
        return Stands.CAME if is_first or self._is_beside_all(rank, queue, launched) else Stands.BEHIND

    def _stands_by_peers(self, queue: DeviceQueue, operation: Operation) -> Stands:
        """How a rank stands that tells no order of its launches. What others launched in an order, or finished, it
        launched in the same."""
        if queue.heads[operation.lane] != operation.number:
            return Stands.BEHIND
        if not queue.knows_messages:
            return Stands.UNKNOWN
        others = [each.operation for each in queue.first if each.operation != operation]
        if any(self._precedes(other, operation) for other in others):
            return Stands.BEHIND
        return Stands.CAME if all(self._precedes(operation, other) for other in others) else Stands.UNKNOWN

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
        earlier = (each for each in queue.open if each.position < launched.position)
        return queue.heads[lane] == number and all(
            self._passed_by_others(rank, each.operation) >= launched.position - each.position for each in earlier
        )

    def _passed_by_others(self, rank: int, operation: Operation) -> int:
        """By how many places others went on beyond an operation that they have not finished, at most."""
        if operation not in self._passed:
            queues = ((member, self._by_rank.get(member)) for member in self._queues.members(operation))
            went_on = [
                (queue.newest_done - own.position, member)
                for member, queue in queues
                if queue and queue.ordered and (own := queue.by_operation.get(operation))
            ]
            self._passed[operation] = sorted(went_on, reverse=True)[:2]
        return next((places for places, member in self._passed[operation] if member != rank), -1)


def open_collectives(timings: JobTimings) -> DeviceQueues | None:
    """What each rank of a recording never finished. Its operations are those of one lane for each group and operation,
    their positions are steps. None where nothing is left unfinished."""
    collectives = timings.collectives
    if collectives is None or not len(timings.ranks):
        return None
    lanes = _lanes(collectives, timings)
    known = (lanes >= 0) & (collectives.seq >= 0)
    rows = np.flatnonzero(known & ~np.isfinite(collectives.end) & _is_last(collectives, timings))
    if not len(rows):
        return None
    wanted = distinct(lanes[rows])
    of_lanes = np.flatnonzero(known & np.isin(lanes, wanted))
    reached = _Reached(collectives, of_lanes, np.searchsorted(wanted, lanes[of_lanes]), timings)
    names = [_lane(collectives, timings, place, int(lane)) for place, lane in enumerate(wanted)]
    open_of: dict[int, list[Launched]] = {}
    for row, place in zip(rows.tolist(), np.searchsorted(wanted, lanes[rows]).tolist(), strict=True):
        column, number, op = (int(each[row]) for each in (collectives.column, collectives.seq, collectives.op))
        if reached.came_to(place, column) <= number:
            launched = Launched(Operation(names[place], number), int(collectives.step[row]), op, True)
            open_of.setdefault(column, []).append(launched)
    by_rank = {}
    for column, rank in enumerate(timings.ranks.tolist()):
        last = {names[place]: number for place, number in reached.last.get(column, {}).items()}
        by_rank[rank] = DeviceQueue(tuple(open_of.get(column, ())), ordered=False, last_numbers=last)
    return DeviceQueues(tuple(_group(collectives, timings, int(lane)) for lane in wanted), by_rank)


class _Reached:
    """How far each rank (column) came in each lane (its place). `last`: the last number that it came to, by column."""

    def __init__(
        self, collectives: Collectives, rows: NDArray[np.int64], places: NDArray[np.int64], timings: JobTimings
    ) -> None:
        width = len(timings.ranks)
        keys, inverse = np.unique(places * width + collectives.column[rows], return_inverse=True)
        last, done = np.full(len(keys), -1, np.int64), np.full(len(keys), -1, np.int64)
        np.maximum.at(last, inverse, collectives.seq[rows])
        finished = np.isfinite(collectives.end[rows])
        np.maximum.at(done, inverse[finished], collectives.seq[rows][finished])
        newest = np.full(int(places.max()) + 1, -1, np.int64)
        for_all = finished & np.isin(collectives.op[rows], tuple(NEEDS_ALL))
        np.maximum.at(newest, places[for_all], collectives.seq[rows][for_all])
        of_lane, column = np.divmod(keys, width)
        came = np.maximum(done, newest[of_lane])
        self._came = dict(zip(keys.tolist(), came.tolist(), strict=True))
        self._width = width
        self.last: dict[int, dict[int, int]] = {}
        numbers = np.maximum(last, came).tolist()
        for place, rank, number in zip(of_lane.tolist(), column.tolist(), numbers, strict=True):
            self.last.setdefault(rank, {})[place] = number

    def came_to(self, place: int, column: int) -> int:
        """The last number of the lane that the rank finished, or that another did who could not without it. What it left
        unfinished before that, as DDP's join() does, nobody waited for."""
        return self._came[place * self._width + column]


def _lanes(collectives: Collectives, timings: JobTimings) -> NDArray[np.int64]:
    """[C]: the number of each record's lane: one for each group and operation, and after these one for each pair; -1
    where nothing tells."""
    ranks, peer = timings.ranks, collectives.peer.astype(np.int64)
    own, sends = ranks[collectives.column], collectives.op == SEND
    source, target = np.where(sends, own, peer), np.where(sends, peer, own)
    of_pair = len(collectives.groups) * len(OPS) + source * (int(ranks[-1]) + 1) + target
    of_pair = np.where(np.isin(peer, ranks), of_pair, -1)
    of_group = np.where(collectives.op >= 0, collectives.group.astype(np.int64) * len(OPS) + collectives.op, -1)
    return np.where(sends | (collectives.op == RECV), of_pair, of_group)


def _lane(collectives: Collectives, timings: JobTimings, place: int, number: int) -> Lane:
    pair = number - len(collectives.groups) * len(OPS)
    return Lane(place) if pair < 0 else Lane(-1, *divmod(pair, int(timings.ranks[-1]) + 1))


def _group(collectives: Collectives, timings: JobTimings, number: int) -> ProcessGroup:
    """The group of a lane. The members of one that was not declared are those that came."""
    place = number // len(OPS)
    if place >= len(collectives.groups):
        return ProcessGroup("", "", ())
    group = collectives.groups[place]
    came = timings.ranks[distinct(collectives.column[collectives.group == place])]
    return group if group.ranks else group._replace(ranks=tuple(came.tolist()))


def _is_last(collectives: Collectives, timings: JobTimings) -> NDArray[np.bool_]:
    """[C]: which records may be the rank's last: those of the last step of which it recorded anything, and none of a
    rank that ended with status 0. What it left unfinished before, it had not waited for."""
    finished = np.isfinite(collectives.end) & (collectives.step >= 0)
    last_step = np.array([-1 if state.step is None else state.step for state in timings.states], np.int64)
    np.maximum.at(last_step, collectives.column[finished], collectives.step[finished])
    ended = np.array([state.state == "finished" and state.end is not None for state in timings.states], np.bool_)
    is_last = (collectives.step < 0) | (collectives.step >= last_step[collectives.column])
    last: NDArray[np.bool_] = is_last & ~ended[collectives.column]
    return last
