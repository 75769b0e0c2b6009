"""Finds who a job waits for by what each device has yet to finish, as Flight Recorder dumps tell it. Pure.

Each rank stands at the first thing that its device has not finished, and waits for the members that have yet to come to
it. Followed from rank to rank, that ends at one of three places:

- a rank that never launched what others stand at, and has nothing to finish itself: its host hangs;
- an operation to which all members came, and which does not end: one of their devices no longer completes anything, and
  where it ended for others, one of those for whom it did not. A device that has stopped is in every such operation, so
  several of them tell which it is;
- a circle of ranks each of which never launched what another stands at: a deadlock.

How far hosts have launched ahead tells nothing. Who lacks what others could not have finished without it has an older
dump than they, and then nobody is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from laggard.kit.constants import OPS
from laggard.kit.words import counted, ranks_text, seconds_text
from laggard.locate.collectives import DeviceQueue, DeviceQueues, Lane, Launched, Operation
from laggard.locate.hang.attendance import Attendance, Standing
from laggard.locate.hang.hangs import ranks_in_cycles
from laggard.locate.hang.waits import circle_note
from laggard.locate.job_timings import JobTimings
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

STILL_SECONDS = 5.0
"""The time for which nothing may have changed on a rank before it counts as standing still. Our own choice: above what
ranks of a job that runs wait for one another, and below the shortest timeout that people set."""

MAX_CULPRITS = 16
"""The most ranks that are named as never having come: where there are more, the job was ended as a whole."""

MAX_DEVICES = 4
"""The most places at which devices have stopped: where there are more, it is no device."""

HOST_CONFIDENCE = 0.8
DEVICE_CONFIDENCE = 0.8
SHARED_CONFIDENCE = 0.5
"""The confidence where one of several ranks' devices no longer completes anything."""

_MAX_EVIDENCE = 4
_SEND = OPS.index("send")


class _Stuck(NamedTuple):
    """An operation to which all members came that are seen, and which does not end for `ranks`. `done`: the members for
    whom it ended. `unseen`: the members of whom nothing is known."""

    operation: Operation
    op: int
    ranks: frozenset[int]
    done: frozenset[int]
    unseen: frozenset[int]


class _NotBegun(NamedTuple):
    """An operation that the devices of `ranks` have not begun, with nothing else to finish before, while those of
    `came` did."""

    operation: Operation
    op: int
    ranks: frozenset[int]
    came: frozenset[int]


class _Suspicion(NamedTuple):
    """The ranks of whose devices one has stopped, and what does not end for it."""

    ranks: frozenset[int]
    stuck: tuple[_Stuck, ...]


class _Findings(NamedTuple):
    """Who is at the root: hosts, devices that have not begun what others have, and devices that finish nothing."""

    hosts: Sequence[int]
    not_begun: Sequence[_NotBegun]
    suspicions: Sequence[_Suspicion]


class _Waits(NamedTuple):
    """Who waits for whom: `never` has, for each rank, the members that never launched what it stands at, `late` besides
    those that launched it and have something else to finish before. `sends`: the ranks that have nothing to finish but
    sends. `awaited_in`: of a rank that never launched it, what another stands at."""

    never: Mapping[int, frozenset[int]]
    late: Mapping[int, frozenset[int]]
    sends: frozenset[int]
    awaited_in: Mapping[int, Launched]


def stopped_devices(timings: JobTimings) -> PartialVerdict:
    """The ranks at the root of a hang; nothing where no device has anything to finish."""
    queues = timings.queues
    if queues is None or not any(queue.open for queue in queues.by_rank.values()):
        return NOTHING_FOUND
    unsure = _moving(queues) or _older_dumps(queues)
    if unsure is not None:
        return PartialVerdict(notes=(unsure,))
    attendance = Attendance(queues)
    waits = _waits(queues, attendance)
    stuck, not_begun = _stuck(queues, attendance)
    late = frozenset().union(*(each.ranks for each in not_begun))
    whole = [each for each in stuck if not each.unseen and not each.ranks & late]
    findings = _Findings(_silent_hosts(queues, waits), not_begun, [*_suspicions(whole)])
    named = [*_culprits(queues, attendance, waits, findings)]
    devices = sum(culprit.device_stopped for culprit in named)
    if named and devices <= MAX_DEVICES and len(named) <= MAX_CULPRITS:
        return PartialVerdict(tuple(named))
    return PartialVerdict(notes=(_note(queues, waits, stuck),))


def _still(queues: DeviceQueues, rank: int) -> bool:
    """Whether nothing had changed on the rank for a while, as far as that is known."""
    seconds = queues.by_rank[rank].still_seconds
    return seconds is None or seconds >= STILL_SECONDS


def _moving(queues: DeviceQueues) -> Note | None:
    """The note that the job went on until the dumps were written; None where some rank stood still."""
    standing = [rank for rank, queue in queues.by_rank.items() if queue.open]
    if any(_still(queues, rank) for rank in standing):
        return None
    longest = max(queues.by_rank[rank].still_seconds or 0.0 for rank in standing)
    text = (
        f"the dumps were written {seconds_text(longest)} after the last thing that they tell, or less: the job may "
        "have been running; take them again, some seconds later"
    )
    return Note("moving", text)


def _older_dumps(queues: DeviceQueues) -> Note | None:
    """The note on ranks that lack what others could not have finished without them. What others finished as the last of
    its lane, a rank may be about to finish; all before that it has finished."""
    lacking: dict[int, tuple[int, Operation]] = {}
    for other, operation in _finished(queues):
        lane, number = operation
        for rank in queues.members(operation):
            queue = queues.by_rank.get(rank)
            if queue is not None and queue.knows(lane) and _lacks(queue, operation):
                lacking.setdefault(rank, (other, operation))
    if not lacking:
        return None
    rank, (other, operation) = min(lacking.items())
    text = (
        f"the dump of {ranks_text(lacking)} is older than others, or tells less: rank {other} has finished "
        f"{_name(queues, operation)}, which nobody finishes before rank {rank} has done all before it; take the "
        "dumps of all ranks at one moment, and where they stay so, look at that rank's GPU"
    )
    return Note("older_dump", text, ranks=tuple(sorted(lacking))[:MAX_NAMED_RANKS])


def _finished(queues: DeviceQueues) -> list[tuple[int, Operation]]:
    """Of each group, the last operation that cannot end before all have come and that a rank finished; and who did."""
    newest: dict[Lane, tuple[int, int]] = {}
    for rank, queue in queues.by_rank.items():
        for lane, number in queue.finished.items():
            newest[lane] = max(newest.get(lane, (-1, -1)), (number, rank))
    return [(rank, Operation(lane, number)) for lane, (number, rank) in sorted(newest.items())]


def _lacks(queue: DeviceQueue, operation: Operation) -> bool:
    lane, number = operation
    return queue.last_numbers.get(lane, -1) < number or queue.heads.get(lane, number) < number


def _waits(queues: DeviceQueues, attendance: Attendance) -> _Waits:
    never: dict[int, frozenset[int]] = {}
    late: dict[int, frozenset[int]] = {}
    awaited_in: dict[int, Launched] = {}
    for rank, queue in queues.by_rank.items():
        for launched in queue.first if _still(queues, rank) else ():
            not_launched = attendance.of(launched.operation)[Standing.NOT_LAUNCHED]
            never[rank] = _union(never.get(rank), not_launched)
            late[rank] = _union(late.get(rank), attendance.late(launched.operation))
            for member in not_launched - awaited_in.keys():
                awaited_in[member] = launched
    open_now = {rank: queue.open for rank, queue in queues.by_rank.items() if queue.open}
    sends = frozenset(rank for rank, each in open_now.items() if all(one.op == _SEND for one in each))
    return _Waits(never, late, sends, awaited_in)


def _union(one: frozenset[int] | None, other: frozenset[int]) -> frozenset[int]:
    """Both; the very value, which thousands of ranks may share, where there is one alone."""
    return one | other if one and not one >= other else one or other


def _silent_hosts(queues: DeviceQueues, waits: _Waits) -> list[int]:
    """The ranks that never launched what others stand at, and have nothing to finish: their hosts are at something
    else. A send alone keeps no host from going on: who sends to ranks that wait for it counts as well."""
    in_circles = ranks_in_cycles(waits.late) & waits.sends if waits.sends else frozenset()
    found = []
    for rank in sorted(waits.awaited_in):
        queue = queues.by_rank[rank]
        if (not queue.open or rank in in_circles) and not queue.has_other and _still(queues, rank):
            found.append(rank)
    return found


def _stuck(queues: DeviceQueues, attendance: Attendance) -> tuple[list[_Stuck], list[_NotBegun]]:
    """What does not end although all came that are seen, and what some devices have not begun."""
    stuck, not_begun = [], []
    still = [queue for rank, queue in queues.by_rank.items() if _still(queues, rank)]
    operations = {each.operation: each.op for queue in still for each in queue.first}
    for operation, op in operations.items():
        members = attendance.of(operation)
        came, done, unseen = members[Standing.CAME], members[Standing.DONE], members[Standing.UNKNOWN]
        late = frozenset(rank for rank in members[Standing.NOT_BEGUN] if not queues.by_rank[rank].has_other)
        if late and came | done:
            not_begun.append(_NotBegun(operation, op, late, came))
        elif came and len(came) + len(done) + len(unseen) == len({*queues.members(operation)}):
            stuck.append(_Stuck(operation, op, came, done, unseen))
    return stuck, not_begun


def _suspicions(stuck: Sequence[_Stuck]) -> Iterator[_Suspicion]:
    """The ranks that are in the most of these operations, then those that are in most of what is left: a device that
    has stopped is in every operation that it keeps from ending."""
    left = list(stuck)
    while left:
        inside: dict[int, frozenset[_Stuck]] = {}
        for each in left:
            for rank in each.ranks:
                inside[rank] = inside.get(rank, frozenset()) | {each}
        most = max(map(len, inside.values()))
        first = min(rank for rank, each in inside.items() if len(each) == most)
        alike = [rank for rank, each in inside.items() if len(each) == most and each & inside[first]]
        covered = frozenset().union(*(inside[rank] for rank in alike))
        yield _Suspicion(frozenset(alike), tuple(each for each in left if each in covered))
        left = [each for each in left if each not in covered]


def _culprits(queues: DeviceQueues, attendance: Attendance, waits: _Waits, findings: _Findings) -> Iterator[Culprit]:
    standing = {rank for rank, queue in queues.by_rank.items() if queue.open}
    for rank in findings.hosts:
        launched = waits.awaited_in[rank]
        stayed = attendance.of(launched.operation)[Standing.CAME]
        yield _host_culprit(queues, rank, launched, stayed, standing)
    for late in findings.not_begun:
        yield _device_culprit(queues, late.ranks, late.operation, standing, _not_begun_evidence(queues, late))
    for suspicion in findings.suspicions:
        if 2 * len(suspicion.ranks) <= len(queues.by_rank):
            first = suspicion.stuck[0].operation
            yield _device_culprit(queues, suspicion.ranks, first, standing, _stuck_evidence(queues, suspicion))


def _host_culprit(
    queues: DeviceQueues, rank: int, launched: Launched, stayed: frozenset[int], standing: set[int]
) -> Culprit:
    operation = launched.operation
    return Culprit(
        kind="hung",
        ranks=(rank,),
        group=_group(queues, operation),
        confidence=HOST_CONFIDENCE,
        evidence=(f"never came to {_name(queues, operation, launched.op)}, in which {ranks_text(stayed)} stayed",),
        victims=tuple(sorted(standing - {rank}))[:MAX_NAMED_RANKS],
    )


def _device_culprit(
    queues: DeviceQueues, ranks: frozenset[int], operation: Operation, standing: set[int], evidence: Iterable[str]
) -> Culprit:
    return Culprit(
        kind="hung",
        ranks=tuple(sorted(ranks)),
        phase="collective",
        group=_group(queues, operation),
        confidence=DEVICE_CONFIDENCE if len(ranks) == 1 else SHARED_CONFIDENCE,
        evidence=(*evidence, *_launched_ahead(queues, ranks)),
        victims=tuple(sorted(standing - ranks))[:MAX_NAMED_RANKS],
        device_stopped=True,
    )


def _not_begun_evidence(queues: DeviceQueues, late: _NotBegun) -> Iterator[str]:
    name = _name(queues, late.operation, late.op)
    others = f"those of {ranks_text(late.came)} did" if late.came else "others have finished it"
    yield f"enqueued {name}, which its device never began, while {others}"


def _stuck_evidence(queues: DeviceQueues, suspicion: _Suspicion) -> Iterator[str]:
    for each in suspicion.stuck[:_MAX_EVIDENCE]:
        name = _name(queues, each.operation, each.op)
        if each.done:
            yield f"came to {name}, which {ranks_text(each.done)} finished, and never finished it"
        else:
            yield f"came to {name}, as did {ranks_text(each.ranks - suspicion.ranks) or 'all'}, and nobody finished it"
    if len(suspicion.stuck) > 1 and len(suspicion.ranks) == 1:
        yield f"it alone is in all {len(suspicion.stuck)} operations to which all came and which do not end"


def _launched_ahead(queues: DeviceQueues, ranks: frozenset[int]) -> Iterator[str]:
    if len(ranks) == 1:
        count = len(queues.by_rank[next(iter(ranks))].open)
        if count > 1:
            yield f"its host went on and launched {count - 1} more, none of which is finished"


def _note(queues: DeviceQueues, waits: _Waits, stuck: Sequence[_Stuck]) -> Note:
    """The note where nobody is named."""
    unseen = [each for each in stuck if each.unseen]
    circle = ranks_in_cycles({rank: each for rank, each in waits.never.items() if rank not in waits.sends})
    if circle and not stuck:
        return circle_note(sorted(circle))
    standing = sorted(rank for rank, queue in queues.by_rank.items() if queue.open)
    if unseen:
        return _unseen_note(queues, unseen, len(standing))
    whole = sorted(stuck, key=lambda each: len(each.ranks))
    where = f": {_name(queues, whole[0].operation, whole[0].op)}" if whole else ""
    more = " and others" if len(whole) > 1 else ""
    text = (
        f"{counted(len(standing), 'rank')} never finished the last collectives, to which all came{where}{more}; the "
        "job was ended in them, or the network or a device among them stands still"
    )
    if not whole:
        text = f"{counted(len(standing), 'rank')} never finished what they launched; nothing tells for whom they wait"
    ranks = sorted(whole[0].ranks) if whole else standing
    return Note("unfinished", text, ranks=tuple(ranks[:MAX_NAMED_RANKS]))


def _unseen_note(queues: DeviceQueues, stuck: Sequence[_Stuck], waiting: int) -> Note:
    """The note on a hang at whose root may be a rank of which nothing is recorded."""
    first = min(stuck, key=lambda each: (len(each.unseen), each.operation))
    ranks = sorted(frozenset().union(*(each.unseen for each in stuck)))
    others = f"; {counted(waiting, 'rank')} wait in all" if waiting > len(first.ranks) else ""
    text = (
        f"{ranks_text(first.ranks)} never finished {_name(queues, first.operation, first.op)}, to which all came that "
        f"are seen; nothing is recorded of {ranks_text(ranks)}, which may have died or hang{others}"
    )
    return Note("unseen_ranks", text, ranks=tuple(ranks)[:MAX_NAMED_RANKS])


def _group(queues: DeviceQueues, operation: Operation) -> str | None:
    return queues.groups[operation.lane.group].name if operation.lane.group >= 0 else None


def _name(queues: DeviceQueues, operation: Operation, op: int = -1) -> str:
    lane, number = operation
    if lane.group < 0:
        return f"the send number {number} from rank {lane.source} to rank {lane.target}"
    return f"{OPS[op] if op >= 0 else 'collective'} number {number} of {queues.groups[lane.group].name}"


# Finds the ranks that were stopped, by a signal or a debugger, when a job ended: the others of their machine saw it,
# and whoever failed after that failed because they waited for them. Pure.


def stopped_to_the_end(timings: JobTimings) -> PartialVerdict:
    """The ranks of a recording that were stopped until they ended, as culprits. Where all were, somebody suspended the
    job."""
    stopped = [column for column, state in enumerate(timings.states) if state.stopped and state.state == "died"]
    if timings.live or not 0 < len(stopped) < len(timings.states):
        return NOTHING_FOUND
    return PartialVerdict(tuple(_culprit(timings, column) for column in stopped[:MAX_NAMED_RANKS]))


def _culprit(timings: JobTimings, column: int) -> Culprit:
    state, rank = timings.states[column], int(timings.ranks[column])
    flight = state.in_flight
    evidence = ["the other ranks of its machine saw its process stopped, by a signal or a debugger"]
    if flight is not None:
        evidence.append(f"it is in {flight.op} of {flight.group}")
    elif state.phase:
        evidence.append(f"it is in {state.phase}")
    return Culprit(
        kind="hung",
        ranks=(rank,),
        node=timings.nodes[column],
        gpu=timings.gpus[column],
        phase="collective" if flight else state.phase,
        group=flight.group if flight else None,
        since_step=0 if state.step is None else state.step + 1,
        confidence=0.9,
        evidence=tuple(evidence),
        victims=tuple(int(each) for each in timings.ranks if each != rank)[:MAX_NAMED_RANKS],
        stopped=True,
    )
