"""Finds who a job waits for by what each rank has yet to finish, in its recording or by its dump. Pure.

Each rank stands at the first thing that it has not finished, and waits for the members that have yet to come to it.
Followed from rank to rank, that ends at one of three places:

- a rank that never came to what others stand at, and has nothing to finish itself: its host hangs;
- an operation to which all members came, and which does not end: one of their devices no longer completes anything, and
  where it ended for others, one of those for whom it did not. A device that has stopped is in every such operation, so
  several of them tell which it is;
- a circle of ranks each of which never came to what another stands at: a deadlock.

How far hosts have launched ahead tells nothing. Who lacks what others could not have finished without it has an older
dump than they, and then nobody is named. In a recording each rank came to something last, and was killed in it: one
to which all came is told of where others wait for its members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from laggard.kit.constants import OPS
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.collectives import DeviceQueue, DeviceQueues, Lane, Launched, Operation
from laggard.locate.hang.open_operations import SEND, Attendance, Stands, open_collectives
from laggard.locate.hang.wait_graph import (
    Standing,
    WaitGraph,
    circle_note,
    culprit_at,
    has_left,
    ranks_in_cycles,
    unfinished_note,
    unseen_note,
)
from laggard.locate.job_timings import JobTimings
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

STILL_SECONDS = 5.0
"""The time for which nothing may have changed on a rank before it counts as standing still. Our own choice: above what
ranks of a job that runs wait for one another, and below the shortest timeout that people set."""

MAX_SHARE = 0.5
"""The largest share of the ranks that may be named: where more than half stand still, they are not what others wait
for, and the job was ended as a whole."""

CONFIDENCE = 0.8
"""The confidence that a rank which never came, or a device which is in all that does not end, hangs. How long the others
had waited is not recorded: the job may have been ended before the rank could come. Our own choice."""

SHARED_CONFIDENCE = 0.5
"""The confidence where one of several ranks' devices, or the network, no longer completes anything. Our own choice."""

_MAX_EVIDENCE = 4


class _Stuck(NamedTuple):
    """An operation that does not end for `ranks`. `done`: the members for whom it ended; `unseen`: those of whom
    nothing is known. `late`: the devices of `ranks` have not begun it, with nothing else to finish, and those of `came`
    have."""

    launched: Launched
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
        self._column = {rank: column for column, rank in enumerate(timings.ranks.tolist())}
        self._open = {rank for rank, queue in self._by_rank.items() if queue.open}
        self._of_devices = timings.queues is not None
        still = {rank: queue.first for rank, queue in self._by_rank.items() if queue.open and _still(queue)}
        self._first = {launched.operation: launched for all_of in still.values() for launched in all_of}
        self._graph = WaitGraph(self._standing(rank, all_of) for rank, all_of in still.items())

    def _standing(self, rank: int, first: Sequence[Launched]) -> Standing:
        missing = [self._attendance.of(each.operation)[Stands.NOT_LAUNCHED] for each in first]
        awaited = missing[0].union(*missing[1:]) if len({*missing}) > 1 else missing[0]
        at = next((each for each, members in zip(first, missing, strict=True) if members), first[0])
        name = _name(self._queues, at.operation, at.op)
        seconds = self._by_rank[rank].still_seconds or 0.0
        return Standing(rank, name, name, self._group(at) or "", at.operation.number, seconds, awaited)

    def verdict(self) -> PartialVerdict:
        stuck = [found for launched in self._first.values() if (found := self._stuck_in(launched))]
        late = frozenset().union(*(each.ranks for each in stuck if each.late))
        whole = [each for each in stuck if not each.late and not each.unseen and not each.ranks & late]
        named = [*self._silent_hosts()]
        named += [self._device_culprit(each.ranks, [each]) for each in stuck if each.late]
        named += [self._device_culprit(ranks, of) for ranks, of in _suspicions(whole) if self._is_suspect(ranks)]
        if named and sum(len(each.ranks) for each in named) <= MAX_SHARE * len(self._by_rank):
            return PartialVerdict(tuple(named))
        return PartialVerdict(notes=(self._note([each for each in stuck if not each.late]),))

    def _is_suspect(self, ranks: frozenset[int]) -> bool:
        awaited = self._of_devices or bool(ranks & self._graph.awaited)
        return awaited and len(ranks) <= MAX_SHARE * len(self._by_rank)

    def _stuck_in(self, launched: Launched) -> _Stuck | None:
        """What does not end although all came that are seen, or what some devices have not begun; None of others."""
        members = self._attendance.of(launched.operation)
        came, done, unseen = members[Stands.CAME], members[Stands.DONE], members[Stands.UNKNOWN]
        late = frozenset(rank for rank in members[Stands.NOT_BEGUN] if not self._by_rank[rank].has_other)
        if late and came | done:
            return _Stuck(launched, late, came=came, late=True)
        is_whole = len(came | done | unseen) == len({*self._queues.members(launched.operation)})
        return _Stuck(launched, came, done, unseen) if came and is_whole else None

    def _silent_hosts(self) -> Iterator[Culprit]:
        """The ranks that never came to what others stand at, and have nothing to finish: their hosts are at something
        else. A send alone keeps no host from going on: who sends to ranks that wait for it counts as well. All ranks of
        a machine of which none came are one culprit."""
        sends = {rank for rank in self._open if all(each.op == SEND for each in self._by_rank[rank].open)}
        hosts = [
            rank
            for rank in sorted(self._graph.awaited - (self._open - (sends and sends & self._in_circles())))
            if not self._by_rank[rank].has_other and _still(self._by_rank[rank])
        ]
        nodes, sizes = self._timings.nodes, Counter(self._timings.nodes)
        here = Counter(nodes[self._column[rank]] for rank in hosts)

        def together(rank: int) -> str | int:
            node = nodes[self._column[rank]]
            return node if node is not None and 1 < here[node] == sizes[node] < len(nodes) else rank

        for ranks in grouped(hosts, together).values():
            yield self._host_culprit(ranks)

    def _in_circles(self) -> frozenset[int]:
        """The ranks that wait for one another, be it for what was launched and has something else before it."""
        late = (Stands.NOT_LAUNCHED, Stands.BEHIND, Stands.NOT_BEGUN)
        waits: dict[int, set[int]] = {rank: set() for rank in self._graph.standings}
        for rank, found in waits.items():
            for launched in self._by_rank[rank].first:
                members = self._attendance.of(launched.operation)
                found.update(*(members[each] for each in late))
        return ranks_in_cycles(waits)

    def _host_culprit(self, ranks: Sequence[int]) -> Culprit:
        launched = next(
            each for each in self._first.values() if self._attendance.of(each.operation)[Stands.NOT_LAUNCHED] & {*ranks}
        )
        state = self._timings.states[self._column[ranks[0]]]
        stayed = self._attendance.of(launched.operation)[Stands.CAME]
        step = f" in step {launched.position}" if self._since(launched) is not None else ""
        together = [f"none of the {len(ranks)} ranks of the machine came"] if len(ranks) > 1 else []
        name = _name(self._queues, launched.operation, launched.op)
        return self._culprit(
            ranks,
            launched,
            kind="dead" if has_left(state) else "hung",
            phase=None,
            confidence=CONFIDENCE,
            evidence=(*together, f"never came to {name}{step}, in which {ranks_text(stayed)} stayed"),
            end=state.end if has_left(state) else None,
        )

    def _device_culprit(self, ranks: frozenset[int], stuck: Sequence[_Stuck]) -> Culprit:
        return self._culprit(
            sorted(ranks),
            stuck[0].launched,
            phase="collective",
            confidence=CONFIDENCE if len(ranks) == 1 else SHARED_CONFIDENCE,
            evidence=tuple(self._device_evidence(ranks, stuck)),
            device_stopped=self._of_devices,
        )

    def _culprit(self, ranks: Sequence[int], at: Launched, **more: object) -> Culprit:
        columns = [self._column[rank] for rank in ranks]
        waiting = (self._column[rank] for rank in self._open)
        state = self._timings.states[columns[0]]
        return culprit_at(
            self._timings, columns, state, waiting, group=self._group(at), since_step=self._since(at), **more
        )

    def _device_evidence(self, ranks: frozenset[int], stuck: Sequence[_Stuck]) -> Iterator[str]:
        for each in stuck[:_MAX_EVIDENCE]:
            name = _name(self._queues, each.launched.operation, each.launched.op)
            if each.late:
                others = f"those of {ranks_text(each.came)} did" if each.came else "others have finished it"
                yield f"enqueued {name}, which its device never began, while {others}"
            elif each.done:
                yield f"came to {name}, which {ranks_text(each.done)} finished, and never finished it"
            else:
                yield f"came to {name}, as did {ranks_text(each.ranks - ranks) or 'all'}, and nobody finished it"
        if len(ranks) > 1:
            return
        if len(stuck) > 1:
            yield f"it alone is in all {len(stuck)} operations to which all came and which do not end"
        ahead = len(self._by_rank[next(iter(ranks))].open) - 1
        if ahead and self._of_devices:
            yield f"its host went on and launched {ahead} more, none of which is finished"

    def _note(self, stuck: Sequence[_Stuck]) -> Note:
        """The note where nobody is named."""
        sends = {rank for rank in self._open if all(each.op == SEND for each in self._by_rank[rank].open)}
        standings = self._graph.standings.items()
        circle = ranks_in_cycles({rank: each.awaited for rank, each in standings if rank not in sends})
        if circle and not stuck:
            return circle_note(circle)
        unseen = [each for each in stuck if each.unseen]
        if unseen:
            first = min(unseen, key=lambda each: (len(each.unseen), each.launched.operation))
            name = _name(self._queues, first.launched.operation, first.launched.op)
            ranks = sorted(frozenset().union(*(each.unseen for each in unseen)))
            return unseen_note(sorted(first.ranks), name, ranks, len(self._open))
        whole = sorted(stuck, key=lambda each: len(each.ranks))
        names = [_name(self._queues, each.launched.operation, each.launched.op) for each in whole[:2]]
        return unfinished_note(sorted(whole[0].ranks if whole else self._open), len(self._open), names)

    def _group(self, launched: Launched) -> str | None:
        place = launched.operation.lane.group
        return self._queues.groups[place].name if place >= 0 else None

    def _since(self, launched: Launched) -> int | None:
        """The step in which a recording has the operation."""
        return None if self._of_devices or launched.position < 0 else launched.position


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
