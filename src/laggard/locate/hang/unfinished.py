"""Finds who a job waits for by what each rank has yet to finish, in its recording or by its dump. Pure.

Each rank stands at the first thing that it has not finished, and waits for the members that have yet to come to it.
Followed from rank to rank, that ends at one of three places:

- a rank that never came to what others stand at, and has nothing to finish itself: its host hangs;
- an operation to which all members came, and which does not end: one of their devices no longer completes anything, and
  where it ended for others, one of those for whom it did not. A device that has stopped is in every such operation, so
  several of them tell which it is;
- a circle of ranks each of which never came to what another stands at: a deadlock.

Dumps tell what devices have yet to finish of what hosts launched far ahead, and how far that is tells nothing. Where
nothing tells what a device has begun, it may stand at what was launched later as well, as at the buckets of gradients
that are reduced beside the backward pass: it does where another member of the earlier operation, that has not finished
that one either, went on as far. Who lacks what others could not have finished without it has an older dump than they,
and then nobody is named.

A recording holds each collective that a rank entered; one that it never left has no end, and the rank came to it. To
what another member finished all came, whatever is recorded of them: that needs every member. Each rank came to
something last and was killed in it, so that one to which all came is told of where others wait for its members.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.majority import grouped
from laggard.kit.words import counted, ranks_text, seconds_text
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
from laggard.locate.hang.wait_graph import (
    Standing,
    WaitGraph,
    circle_note,
    culprit_at,
    has_left,
    ranks_in_cycles,
)
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import distinct
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

SEND, RECV = OPS.index("send"), OPS.index("recv")

STILL_SECONDS = 5.0
"""The time for which nothing may have changed on a rank before it counts as standing still. Our own choice: above what
ranks of a job that runs wait for one another, and below the shortest timeout that people set."""

MAX_SHARE = 0.5
"""The largest share of the ranks that may be named: where more than half stand still, they are not what others wait
for, and the job was ended as a whole."""

CONFIDENCE = 0.8
"""The confidence that a rank which never came, or a device which is in all that does not end, hangs. How long the
others had waited is not recorded: the job may have been ended before the rank could come. Our own choice."""

SHARED_CONFIDENCE = 0.5
"""The confidence where one of several ranks' devices, or the network, no longer completes anything. Our own choice."""

_MAX_EVIDENCE = 4


class _Stuck(NamedTuple):
    """An operation, with its name, that does not end for `ranks`. `done`: the members for whom it ended; `unseen`:
    those of whom nothing is known. `late`: the devices of `ranks` have not begun it, with nothing else to finish, and
    those of `came` have."""

    operation: Operation
    name: str
    ranks: frozenset[int]
    done: frozenset[int] = frozenset()
    unseen: frozenset[int] = frozenset()
    came: frozenset[int] = frozenset()
    late: bool = False


def unfinished_operations(timings: JobTimings) -> PartialVerdict:
    """The ranks at the root of what never finished, each with those that wait; nothing where all is finished."""
    queues = timings.queues or open_collectives(timings)
    if queues is None or not any(queue.open for queue in queues.by_rank.values()):
        return NOTHING_FOUND
    unsure = _moving(queues) or _older_dumps(queues)
    return PartialVerdict(notes=(unsure,)) if unsure is not None else _Unfinished(timings, queues).verdict()


def _still(queue: DeviceQueue) -> bool:
    """Whether nothing had changed on the rank for a while, as far as that is known."""
    return queue.still_seconds is None or queue.still_seconds >= STILL_SECONDS


def _moving(queues: DeviceQueues) -> Note | None:
    """The note that the job went on until the dumps were written; None where some rank stood still."""
    standing = [queue for queue in queues.by_rank.values() if queue.open]
    if any(map(_still, standing)):
        return None
    longest = max(queue.still_seconds or 0.0 for queue in standing)
    text = (
        f"the dumps were written {seconds_text(longest)} after the last thing that they tell, or less: the job may "
        "have been running; take them again, some seconds later"
    )
    return Note("moving", text)


def _older_dumps(queues: DeviceQueues) -> Note | None:
    """The note on ranks that lack what others could not have finished without them. What others finished as the last of
    its lane, a rank may be about to finish; all before that it has finished."""
    newest: dict[Lane, tuple[int, int]] = {}
    for rank, queue in queues.by_rank.items():
        for lane, number in queue.finished.items():
            newest[lane] = max(newest.get(lane, (-1, -1)), (number, rank))
    lacking: dict[int, tuple[int, Operation]] = {}
    for lane, (number, other) in sorted(newest.items()):
        for rank in queues.members(Operation(lane, number)):
            queue = queues.by_rank.get(rank, DeviceQueue(is_unknown=True))
            lacks = queue.last_numbers.get(lane, -1) < number or queue.heads.get(lane, number) < number
            if queue.knows(lane) and lacks:
                lacking.setdefault(rank, (other, Operation(lane, number)))
    if not lacking:
        return None
    rank, (other, operation) = min(lacking.items())
    text = (
        f"the dump of {ranks_text(lacking)} is older than others, or tells less: rank {other} has finished "
        f"{_name(queues, operation)}, which nobody finishes before rank {rank} has done all before it; take the "
        "dumps of all ranks at one moment, and where they stay so, look at that rank's GPU"
    )
    return Note("older_dump", text, ranks=tuple(sorted(lacking))[:MAX_NAMED_RANKS])


class _Unfinished:
    """A job that stands still, and what each of its ranks stands at."""

    def __init__(self, timings: JobTimings, queues: DeviceQueues) -> None:
        self._timings, self._queues = timings, queues
        self._by_rank = queues.by_rank
        self._attendance = Attendance(queues)
        self._open = {rank for rank, queue in self._by_rank.items() if queue.open}
        self._of_devices = timings.queues is not None
        still = {rank: self._by_rank[rank].first for rank in self._open if _still(self._by_rank[rank])}
        self._first = {launched.operation: launched for rank in sorted(still) for launched in still[rank]}
        self._graph = WaitGraph(self._standing(rank, still[rank]) for rank in sorted(still))

    def _standing(self, rank: int, first: Sequence[Launched]) -> Standing:
        missing = [self._attendance.of(each.operation)[Stands.NOT_LAUNCHED] for each in first]
        awaited = missing[0].union(*missing[1:]) if len({*missing}) > 1 else missing[0]
        at = next((each for each, members in zip(first, missing, strict=True) if members), first[0])
        name, (lane, number) = _name(self._queues, at.operation, at.op), at.operation
        group = self._queues.groups[lane.group].name if lane.group >= 0 else ""
        return Standing(rank, name, name, group, number, self._by_rank[rank].still_seconds or 0.0, awaited)

    def verdict(self) -> PartialVerdict:
        stuck = [found for launched in self._first.values() if (found := self._stuck_in(launched))]
        late = frozenset().union(*(each.ranks for each in stuck if each.late))
        came = [each for each in stuck if not each.late]
        whole = [each for each in came if not each.unseen and not each.ranks & late]
        named = [*self._silent_hosts()]
        named += [self._device_culprit(each.ranks, [each]) for each in stuck if each.late]
        named += [self._device_culprit(ranks, of) for ranks, of in _suspicions(whole) if self._is_suspect(ranks)]
        if named and sum(len(each.ranks) for each in named) <= MAX_SHARE * len(self._by_rank):
            return PartialVerdict(tuple(named))
        return PartialVerdict(notes=(self._note(came),))

    def _is_suspect(self, ranks: frozenset[int]) -> bool:
        awaited = self._of_devices or bool(ranks & self._graph.awaited)
        return awaited and len(ranks) <= MAX_SHARE * len(self._by_rank)

    def _stuck_in(self, launched: Launched) -> _Stuck | None:
        """What does not end although all came that are seen, or what some devices have not begun; None of others."""
        members = self._attendance.of(launched.operation)
        came, done, unseen = members[Stands.CAME], members[Stands.DONE], members[Stands.UNKNOWN]
        name = _name(self._queues, launched.operation, launched.op)
        late = frozenset(rank for rank in members[Stands.NOT_BEGUN] if not self._by_rank[rank].has_other)
        if late and came | done:
            return _Stuck(launched.operation, name, late, came=came, late=True)
        is_whole = len(came | done | unseen) == len({*self._queues.members(launched.operation)})
        return _Stuck(launched.operation, name, came, done, unseen) if came and is_whole else None

    def _silent_hosts(self) -> Iterator[Culprit]:
        """The ranks that never came to what others stand at, and have nothing to finish: their hosts are at something
        else. All ranks of a machine of which none came are one culprit."""
        queues = ((rank, self._by_rank[rank]) for rank in sorted(self._graph.roots))
        hosts = [rank for rank, queue in queues if not queue.open and not queue.has_other and _still(queue)]
        nodes = dict(zip(self._timings.ranks.tolist(), self._timings.nodes, strict=True))
        sizes, here = Counter(nodes.values()), Counter(nodes[rank] for rank in hosts)

        def together(rank: int) -> str | int:
            node = nodes[rank]
            return node if node is not None and 1 < here[node] == sizes[node] < len(nodes) else rank

        for ranks in grouped(hosts, together).values():
            yield self._host_culprit(ranks)

    def _host_culprit(self, ranks: Sequence[int]) -> Culprit:
        wait = self._graph.wait_for(ranks[0])
        name, group = (wait.operation, wait.group) if wait else ("", "")
        waiting = (rank for rank, each in self._graph.standings.items() if ranks[0] in each.awaited)
        stayed = ranks_text(rank for rank in waiting if self._graph.standings[rank].operation == name)
        together = [f"none of the {len(ranks)} ranks of the machine came"] if len(ranks) > 1 else []
        more: dict[str, object] = {"phase": None, "confidence": CONFIDENCE}
        state = self._timings.states[self._columns(ranks)[0]]
        if has_left(state):
            more |= {"kind": "dead", "end": state.end}
        return self._culprit(ranks, group, [*together, f"never came to {name}, in which {stayed} stayed"], **more)

    def _device_culprit(self, ranks: frozenset[int], stuck: Sequence[_Stuck]) -> Culprit:
        place = stuck[0].operation.lane.group
        group = self._queues.groups[place].name if place >= 0 else ""
        confidence = CONFIDENCE if len(ranks) == 1 else SHARED_CONFIDENCE
        more = {"phase": "collective", "confidence": confidence, "device_stopped": self._of_devices}
        return self._culprit(sorted(ranks), group, self._device_evidence(ranks, stuck), **more)

    def _culprit(self, ranks: Sequence[int], group: str, evidence: Iterable[str], **more: object) -> Culprit:
        columns = self._columns(ranks)
        more |= {"group": group or None, "evidence": tuple(evidence)}
        if self._of_devices:  # dumps tell no steps
            more["since_step"] = None
        return culprit_at(self._timings, columns, self._timings.states[columns[0]], self._columns(self._open), **more)

    def _columns(self, ranks: Iterable[int]) -> list[int]:
        columns: list[int] = np.searchsorted(self._timings.ranks, sorted(ranks)).tolist()
        return columns

    def _device_evidence(self, ranks: frozenset[int], stuck: Sequence[_Stuck]) -> Iterator[str]:
        for each in stuck[:_MAX_EVIDENCE]:
            if each.late:
                others = f"those of {ranks_text(each.came)} did" if each.came else "others have finished it"
                yield f"enqueued {each.name}, which its device never began, while {others}"
            elif each.done:
                yield f"came to {each.name}, which {ranks_text(each.done)} finished, and never finished it"
            else:
                others = ranks_text(each.ranks - ranks) or "all"
                yield f"came to {each.name}, as did {others}, and nobody finished it"
        if len(ranks) == 1 and len(stuck) > 1:
            yield f"it alone is in all {len(stuck)} operations to which all came and which do not end"
        ahead = len(self._by_rank[min(ranks)].open) - 1
        if len(ranks) == 1 and ahead and self._of_devices:
            yield f"its host went on and launched {ahead} more, none of which is finished"

    def _note(self, stuck: Sequence[_Stuck]) -> Note:
        """The note where nobody is named. `stuck`: to which all came."""
        standings = self._graph.standings.items()
        sends = {rank for rank in self._open if all(each.op == SEND for each in self._by_rank[rank].open)}
        circle = ranks_in_cycles({rank: each.awaited for rank, each in standings if rank not in sends})
        if circle and not stuck:
            return circle_note(circle)
        unseen = frozenset().union(*(each.unseen for each in stuck))
        if unseen:
            return self._unseen_note(unseen, [each for each in stuck if each.unseen])
        whole = sorted(stuck, key=lambda each: len(each.ranks))
        what = "what they launched; nothing tells for whom they wait"
        if whole:
            what = (
                f"the last collectives, to which all came: {whole[0].name}{' and others' if len(whole) > 1 else ''}; "
                "the job was ended in them, or the network or a device among them stands still"
            )
        text = f"{counted(len(self._open), 'rank')} never finished {what}"
        return Note("unfinished", text, ranks=tuple(sorted(whole[0].ranks if whole else self._open)[:MAX_NAMED_RANKS]))

    def _unseen_note(self, unseen: frozenset[int], stuck: Sequence[_Stuck]) -> Note:
        """The note on a hang at whose root may be a rank of which nothing tells how far it came."""
        first = min(stuck, key=lambda each: (len(each.unseen), each.operation))
        others = f"; {counted(len(self._open), 'rank')} wait in all" if len(self._open) > len(first.ranks) else ""
        text = (
            f"{ranks_text(first.ranks)} never finished {first.name}, to which all came that are seen; nothing tells "
            f"how far {ranks_text(unseen)} came, which may have died or hang{others}"
        )
        return Note("unseen_ranks", text, ranks=tuple(sorted(unseen)[:MAX_NAMED_RANKS]))


def _suspicions(stuck: Sequence[_Stuck]) -> Iterator[tuple[frozenset[int], list[_Stuck]]]:
    """The ranks that are in the most of these operations, with these, then those that are in most of what is left: a
    device that has stopped is in every operation that it keeps from ending."""
    left = list(stuck)
    while left:
        inside: dict[int, set[int]] = {}
        for place, each in enumerate(left):
            for rank in each.ranks:
                inside.setdefault(rank, set()).add(place)
        most = max(map(len, inside.values()))
        first = min(rank for rank, places in inside.items() if len(places) == most)
        alike = [rank for rank, places in inside.items() if len(places) == most and places & inside[first]]
        covered = set().union(*(inside[rank] for rank in alike))
        yield frozenset(alike), [left[place] for place in sorted(covered)]
        left = [each for place, each in enumerate(left) if place not in covered]


def _name(queues: DeviceQueues, operation: Operation, op: int = -1) -> str:
    lane, number = operation
    if lane.group < 0:
        return f"the send number {number} from rank {lane.source} to rank {lane.target}"
    return f"{OPS[op] if op >= 0 else 'collective'} number {number} of {queues.groups[lane.group].name}"


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
            return Stands.UNKNOWN if is_first else Stands.BEHIND
        return Stands.CAME if is_first or self._is_beside_all(rank, queue, launched) else Stands.BEHIND

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
    """What each rank of a recording never finished. There is a lane for each group and operation, and positions tell
    nothing. What a rank left unfinished before what it came to later, as DDP's join() does, nobody waited for. None
    where nothing is left unfinished."""
    collectives = timings.collectives
    if collectives is None or not len(timings.ranks):
        return None
    lanes = _lanes(collectives, timings)
    known = (lanes >= 0) & (collectives.seq >= 0)
    rows = np.flatnonzero(known & ~np.isfinite(collectives.end) & _is_last(collectives, timings))
    if not len(rows):
        return None
    wanted = distinct(lanes[rows])
    names = [_lane(collectives, timings, place, int(lane)) for place, lane in enumerate(wanted)]
    of_lanes = np.flatnonzero(known & np.isin(lanes, wanted))
    came, last = _progress(collectives, of_lanes, np.searchsorted(wanted, lanes[of_lanes]))
    open_of: dict[int, list[Launched]] = {}
    for row, place in zip(rows.tolist(), np.searchsorted(wanted, lanes[rows]).tolist(), strict=True):
        column, number, op = (int(each[row]) for each in (collectives.column, collectives.seq, collectives.op))
        if came[place, column] <= number:
            launched = Launched(Operation(names[place], number), 0, op, True)
            open_of.setdefault(column, []).append(launched)
    last_of: dict[int, dict[Lane, int]] = {}
    for (place, column), number in last.items():
        last_of.setdefault(column, {})[names[place]] = number
    by_rank = {
        rank: DeviceQueue(tuple(open_of.get(column, ())), ordered=False, last_numbers=last_of.get(column, {}))
        for column, rank in enumerate(timings.ranks.tolist())
    }
    return DeviceQueues(tuple(_group(collectives, timings, int(lane)) for lane in wanted), by_rank)


def finished_by_all(collectives: Collectives, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last number of each lane to which all members came, as somebody finished it who could not without them; -1
    of none. `places`: of the lanes of these rows."""
    newest = np.full(int(places.max(initial=-1)) + 1, -1, np.int64)
    done = np.isfinite(collectives.end[rows]) & np.isin(collectives.op[rows], tuple(NEEDS_ALL))
    np.maximum.at(newest, places[done], collectives.seq[rows][done])
    return newest


Numbers = dict[tuple[int, int], int]
"""A number for each lane (its place) and rank (its column)."""


def _progress(collectives: Collectives, rows: NDArray[np.int64], places: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """The last number that each rank finished in each lane, or that another did who could not without it; and the last
    that it came to. `places`: of the lanes of these rows."""
    columns = int(collectives.column.max()) + 1
    keys, key = np.unique(places * columns + collectives.column[rows], return_inverse=True)
    seq, finished = collectives.seq[rows], np.isfinite(collectives.end[rows])
    last, came = np.full((2, len(keys)), -1, np.int64)
    np.maximum.at(last, key, seq)
    np.maximum.at(came, key[finished], seq[finished])
    came = np.maximum(came, finished_by_all(collectives, rows, places)[keys // columns])
    pairs = [divmod(each, columns) for each in keys.tolist()]
    return dict(zip(pairs, came.tolist(), strict=True)), dict(zip(pairs, np.maximum(last, came).tolist(), strict=True))


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
