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
that are reduced beside the backward pass: it does where some rank went on as far from all that was launched before.
Who lacks what others could not have finished without it has an older dump than they, and then nobody is named.

A recording holds each collective that a rank entered; one that it never left has no end, and the rank came to it. To
what another member finished all came, whatever is recorded of them: that needs every member. Each rank came to
something last and was killed in it, so that one to which all came is told of where others wait for its members.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.majority import grouped
from laggard.kit.words import counted, ranks_text, seconds_text
from laggard.locate.collectives import NEEDS_ALL, Collectives, DeviceQueue, DeviceQueues, Lane, Launched, Operation
from laggard.locate.hang.wait_graph import CONFIDENCE, Standing, WaitGraph, circle_note, culprit_at, has_left
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import distinct
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

STILL_SECONDS = 5.0
"""The time for which nothing may have changed on a rank before it counts as standing still. Our own choice: longer than
ranks of a job that runs wait for one another, and less than the shortest timeout that people set."""

MAX_SHARE = 0.5
"""The largest share of the ranks that may be named: where more stand still, the job was ended as a whole."""

_MAX_EVIDENCE = 4


class Members(NamedTuple):
    """The members of an operation by how they stand to it."""

    done: frozenset[int]
    came: frozenset[int]  # its device stands at it, as far as anything tells
    late: frozenset[int]  # its device has nothing else to finish before, and has not begun it
    behind: frozenset[int]  # it launched the operation, and its device has something else to finish before
    missing: frozenset[int]  # it has not launched the operation
    unseen: frozenset[int]  # nothing tells


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
    longest = seconds_text(max(queue.still_seconds or 0.0 for queue in standing))
    text = f"the dumps were written {longest} after what they tell: the job may have been running, take them again"
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
            own = queues.by_rank.get(rank)
            if own and own.knows(lane) and min(own.last_numbers.get(lane, -1), own.heads.get(lane, number)) < number:
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
        self._timings, self._queues, self._by_rank = timings, queues, queues.by_rank
        self._found: dict[Operation, Members] = {}
        self._passed: dict[Operation, int] = {}
        for queue in self._by_rank.values():
            for each in queue.open if queue.ordered else ():
                places = max(queue.newest_done - each.position, self._passed.get(each.operation, 0))
                self._passed[each.operation] = places
        self._open = {rank for rank, queue in self._by_rank.items() if queue.open}
        self._of_devices = timings.queues is not None
        still = {rank: queue.first for rank, queue in sorted(self._by_rank.items()) if queue.open and _still(queue)}
        self._ops = {launched.operation: launched.op for first in still.values() for launched in first}
        self._graph = WaitGraph(self._standing(rank, first) for rank, first in still.items())

    def _members(self, operation: Operation) -> Members:
        if operation not in self._found:  # thousands ask for the same
            by_kind = grouped(self._queues.members(operation), lambda rank: self._stands(rank, operation))
            self._found[operation] = Members(*(frozenset(by_kind.get(kind, ())) for kind in Members._fields))
        return self._found[operation]

    def _stands(self, rank: int, operation: Operation) -> str:
        """One of the fields of Members."""
        queue = self._by_rank.get(rank)
        if queue is None or not queue.knows(operation.lane):
            return "unseen"
        if operation.number > queue.last_numbers.get(operation.lane, -1):
            return "missing"
        launched = queue.by_operation.get(operation)
        if launched is None:
            return "done"
        if launched.begun:
            return "came"
        if not self._is_at(queue, launched) or (launched.begun is False and queue.has_other):
            return "behind"
        if launched.begun is False:
            return "late"
        return "came" if queue.ordered else "unseen"

    def _is_at(self, queue: DeviceQueue, launched: Launched) -> bool:
        """Whether nothing keeps the device from the operation: it is the first of all, or of its lane, and from each
        that was launched before some rank went on as far, without finishing that."""
        if launched in queue.first:
            return True
        lane, number = launched.operation
        before = (each for each in queue.open if each.position < launched.position)
        may_pass = queue.ordered and launched.begun is None and queue.heads[lane] == number
        return may_pass and all(self._passed[each.operation] >= launched.position - each.position for each in before)

    def _standing(self, rank: int, first: Sequence[Launched]) -> Standing:
        missing = [self._members(each.operation).missing for each in first]
        at = next((each for each, members in zip(first, missing, strict=True) if members), first[0]).operation
        name, seconds = self._name(at), self._by_rank[rank].still_seconds or 0.0
        return Standing(rank, name, self._group(at), at.number, seconds, missing[0].union(*missing[1:]))

    def _name(self, operation: Operation) -> str:
        return _name(self._queues, operation, self._ops[operation])

    def _group(self, operation: Operation) -> str:
        place = operation.lane.group
        return self._queues.groups[place].name if place >= 0 else ""

    def verdict(self) -> PartialVerdict:
        members = {each: self._members(each) for each in self._ops}
        late = {each: of.late for each, of in members.items() if of.late and (of.came or of.done)}
        came = {each: of.came for each, of in members.items() if of.came and not (of.late or of.behind or of.missing)}
        busy = frozenset().union(*late.values())
        whole = {each: ranks for each, ranks in came.items() if not (members[each].unseen or ranks & busy)}
        named = [*self._silent_hosts()]
        named += [self._device_culprit(ranks, [each]) for each, ranks in late.items()]
        named += [self._device_culprit(ranks, of) for ranks, of in _suspicions(whole) if self._is_suspect(ranks)]
        if named and sum(len(each.ranks) for each in named) <= MAX_SHARE * len(self._by_rank):
            return PartialVerdict(tuple(named))
        return PartialVerdict(notes=(self._note(came),))

    def _is_suspect(self, ranks: frozenset[int]) -> bool:
        awaited = self._of_devices or bool(ranks & self._graph.awaited)
        return awaited and len(ranks) <= MAX_SHARE * len(self._by_rank)

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
        wait, state = self._graph.longest_for[ranks[0]], self._timings.states[self._columns(ranks)[0]]
        beside = (each for each in self._graph.standings.values() if each.operation == wait.operation)
        stayed = ranks_text(each.rank for each in beside if ranks[0] in each.awaited)
        together = [f"none of the {len(ranks)} ranks of the machine came"] if len(ranks) > 1 else []
        more: dict[str, object] = {"kind": "dead", "end": state.end} if has_left(state) else {}
        evidence = [*together, f"never came to {wait.operation}, in which {stayed} stayed"]
        return self._culprit(ranks, wait.group, evidence, phase=None, confidence=CONFIDENCE["never came"], **more)

    def _device_culprit(self, ranks: frozenset[int], stuck: Sequence[Operation]) -> Culprit:
        group, evidence = self._group(stuck[0]), self._device_evidence(ranks, stuck)
        confidence = CONFIDENCE["device" if len(ranks) == 1 else "one of several"]
        more = {"phase": "collective", "confidence": confidence, "device_stopped": self._of_devices}
        return self._culprit(sorted(ranks), group, evidence, **more)

    def _culprit(self, ranks: Sequence[int], group: str, evidence: Iterable[str], **more: object) -> Culprit:
        columns = self._columns(ranks)
        more |= {"group": group or None, "evidence": tuple(evidence)}
        if self._of_devices:  # dumps tell no steps
            more["since_step"] = None
        return culprit_at(self._timings, columns, self._timings.states[columns[0]], self._columns(self._open), **more)

    def _columns(self, ranks: Iterable[int]) -> list[int]:
        return [*map(int, np.searchsorted(self._timings.ranks, sorted(ranks)))]

    def _device_evidence(self, ranks: frozenset[int], stuck: Sequence[Operation]) -> Iterator[str]:
        for each in stuck[:_MAX_EVIDENCE]:
            members = self._members(each)
            never = "its device never began" if ranks <= members.late else "never finished"
            finished = ranks_text(members.done) or "nobody"
            yield f"came to {self._name(each)}, which {finished} finished, and {never} it"
        ahead = len(self._by_rank[min(ranks)].open) - 1
        if len(ranks) == 1 and ahead and self._of_devices:
            yield f"its host went on and launched {ahead} more, none of which is finished"

    def _note(self, came: Mapping[Operation, frozenset[int]]) -> Note:
        """The note where nobody is named. `came`: who came to each operation to which all came that are seen. A rank of
        which nothing tells how far it came may be at the root; a send keeps no host from going on, and is no part of a
        circle."""
        waiting = [it for it in self._open if any(at.operation.lane.source != it for at in self._by_rank[it].open)]
        standings = (self._graph.standings.get(rank) for rank in waiting)
        circle = WaitGraph(each for each in standings if each).circle
        if circle and not came:
            return circle_note(circle)
        unseen_of = {each: self._members(each).unseen for each in came}
        ranks, what, unseen = frozenset(self._open), "what was launched", frozenset().union(*unseen_of.values())
        if came:
            first = min(came, key=lambda each: (len(unseen_of[each]) or math.inf, len(came[each])))
            ranks, what = came[first], f"{self._name(first)}, to which all came that are seen"
        others = f"; {counted(len(self._open), 'rank')} wait in all" if len(self._open) > len(ranks) else ""
        why = "the job was ended in it, or the network or a device stands still" if came else "nothing tells for whom"
        if unseen:
            why = f"nothing tells how far {ranks_text(unseen)} came, which may have died or hang"
        text = f"{ranks_text(ranks)} never finished {what}: {why}{others}"
        told = tuple(sorted(unseen or ranks)[:MAX_NAMED_RANKS])
        return Note("unseen_ranks" if unseen else "unfinished", text, ranks=told)


def _suspicions(stuck: Mapping[Operation, frozenset[int]]) -> Iterator[tuple[frozenset[int], list[Operation]]]:
    """The ranks that are in the most of these operations, with these, then those that are in most of what is left: a
    device that has stopped is in every operation that it keeps from ending."""
    left = dict(stuck)
    while left:
        inside = Counter(rank for ranks in left.values() for rank in ranks)
        most = max(inside.values())
        first = min(rank for rank, count in inside.items() if count == most)
        beside = frozenset().union(*(ranks for ranks in left.values() if first in ranks))
        alike = frozenset(rank for rank in beside if inside[rank] == most)
        covered = [each for each, ranks in left.items() if ranks & alike]
        yield alike, covered
        left = {each: ranks for each, ranks in left.items() if each not in covered}


def _name(queues: DeviceQueues, operation: Operation, op: int = -1) -> str:
    lane, number = operation
    if lane.group < 0:
        return f"the send number {number} from rank {lane.source} to rank {lane.target}"
    return f"{OPS[op] if op >= 0 else 'collective'} number {number} of {queues.groups[lane.group].name}"


def open_collectives(timings: JobTimings) -> DeviceQueues | None:
    """What each rank of a recording never finished. There is a lane for each group and operation, and positions tell
    nothing. What a rank left unfinished before what it came to later, as DDP's join() does, nobody waited for. None
    where nothing is left unfinished."""
    collectives = timings.collectives
    if collectives is None or not len(timings.ranks):
        return None
    lanes = collectives.lanes(timings.ranks)
    known = (collectives.op >= 0) & (collectives.seq >= 0)
    known &= ~collectives.is_message | np.isin(collectives.peer, timings.ranks)
    left = np.flatnonzero(known & ~np.isfinite(collectives.end) & _is_last(collectives, timings))
    if not len(left):
        return None
    wanted, first = np.unique(lanes[left], return_index=True)
    ends = zip(*(each[left[first]].tolist() for each in collectives.ends(timings.ranks)), strict=True)
    pairs = enumerate(zip(collectives.is_message[left[first]].tolist(), ends, strict=True))
    names = [Lane(-1, *those) if is_message else Lane(place) for place, (is_message, those) in pairs]
    places = collectives.group[left[first]].tolist()
    groups = tuple(collectives.groups[it]._replace(ranks=_came_to(collectives, timings, it)) for it in places)
    rows = np.flatnonzero(known & np.isin(lanes, wanted))
    places, column = np.searchsorted(wanted, lanes[rows]), collectives.column[rows]
    seq, finished, count = collectives.seq[rows], np.isfinite(collectives.end[rows]), len(timings.ranks)
    keys, key = np.unique(places * count + column, return_inverse=True)  # of each lane and rank
    done = finished_by_all(collectives, rows, places)[keys // count]
    np.maximum.at(done, key[finished], seq[finished])
    last = done.copy()
    np.maximum.at(last, key, seq)
    open_of: dict[int, list[Launched]] = {}
    for place in np.flatnonzero(np.isin(rows, left) & (seq >= done[key])).tolist():
        operation = Operation(names[places[place]], int(seq[place]))
        launched = Launched(operation, 0, int(collectives.op[rows[place]]), True)
        open_of.setdefault(int(column[place]), []).append(launched)
    last_of: dict[int, dict[Lane, int]] = {}
    for each, number in zip(keys.tolist(), last.tolist(), strict=True):
        last_of.setdefault(each % count, {})[names[each // count]] = number
    by_rank = {
        rank: DeviceQueue(tuple(open_of.get(column, ())), ordered=False, last_numbers=last_of.get(column, {}))
        for column, rank in enumerate(timings.ranks.tolist())
    }
    return DeviceQueues(groups, by_rank)


def finished_by_all(collectives: Collectives, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last number of each lane to which all members came, as somebody finished it who could not without them; -1
    of none. `places`: of the lanes of these rows."""
    newest = np.full(int(places.max(initial=-1)) + 1, -1, np.int64)
    done = np.isfinite(collectives.end[rows]) & np.isin(collectives.op[rows], tuple(NEEDS_ALL))
    np.maximum.at(newest, places[done], collectives.seq[rows][done])
    return newest


def _came_to(collectives: Collectives, timings: JobTimings, place: int) -> tuple[int, ...]:
    """The members of a group, as declared, else those that came to its collectives."""
    came = distinct(collectives.column[collectives.group == place])
    return collectives.groups[place].ranks or tuple(timings.ranks[came].tolist())


def _is_last(collectives: Collectives, timings: JobTimings) -> NDArray[np.bool_]:
    """[C]: which records may be the rank's last: those of the last step of which it recorded anything, and none of a
    rank that ended with status 0. What it left unfinished before, it had not waited for."""
    finished = np.isfinite(collectives.end)
    last_step = np.array([-1 if state.step is None else state.step for state in timings.states], np.int64)
    np.maximum.at(last_step, collectives.column[finished], collectives.step[finished])
    ended = np.array([state.state == "finished" and state.end is not None for state in timings.states], np.bool_)
    is_last = (collectives.step < 0) | (collectives.step >= last_step[collectives.column])
    last: NDArray[np.bool_] = is_last & ~ended[collectives.column]
    return last
