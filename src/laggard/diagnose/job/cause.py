"""The cause of a job's end: the failure that came first, and the failures that followed from it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.entities import entities, only, suspects
from laggard.diagnose.job.events import Event, Group, JobEvidence, Place, Weight, WorkStatus, Writer
from laggard.diagnose.kinds import is_cause, is_vague, quote

_SURVIVING_LINES: Final = 200
"""The number of lines of progress after a failure that show that the training went on. What stood in a rank's output
buffer, at most 8 KiB, comes out at its end and is less."""
_MAX_NAMED: Final = 8
_QUOTED_CHARACTERS: Final = 180
_BROAD_ENDS: Final = ("status", "aborted", "nccl_system", "daemon_lost")
"""The kinds of events that tell that something failed, and neither what nor why."""
_OF_ITS_OWN: Final = ("preempted", "time_limit", "node_failed", "interrupted")
_EFFECTS: Final = (Weight.WAITED, Weight.SUMMARY)
_PROGRESS_BETWEEN: Final = 2
"""The lines of progress between two failures from which on the first did not bring about the other: one line may have
their words by chance."""
_CLOSE_CHARACTERS: Final = 2000
"""The longest way between two lines of one message: the messages of Open MPI have fifteen lines."""
_CONCRETE: Final = (
    "JOB_NCCL_ERROR", "JOB_DISK_FULL", "MEMLOCK_LIMIT", "OPEN_FILES_LIMIT", "GPU_DRIVER_FAILED", "GPU_MISSING",
    "FABRIC_MANAGER_DOWN", "FABRIC_NOT_READY",
)  # fmt: skip
"""The codes of what a process itself could not do: where no clock tells the order, waits came of it."""
_MAX_WORLD: Final = 1 << 17
_MIN_REPORTING: Final = 3
"""The fewest ranks that report before others are taken to exist that do not."""
_MAX_SILENT_SHARE: Final = 0.25
"""The largest share of the ranks up to the highest that may be silent, for these to be taken to exist: of a job whose
output is there in part most ranks are silent."""


class Cause(NamedTuple):
    first: Event
    same: tuple[Event, ...]
    """Events like it, of other processes."""
    later: tuple[Event, ...]
    """The events that followed from it, or came beside it."""


class Waiting(NamedTuple):
    """The ranks that waited in collectives of one process group, and for whom."""

    group: Group
    number: int | None
    ops: tuple[tuple[str, tuple[int, ...]], ...]
    """The operations that ranks waited in, each with its ranks."""
    waiting: tuple[int, ...]
    behind: tuple[int, ...]
    """Ranks that had started fewer collectives than the one that the others wait in."""
    missing: tuple[int, ...]
    """Ranks of which no timeout is reported: they had not come, or are dead."""
    elsewhere: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Other numbers that ranks waited in, each with its ranks."""
    within: bool = False
    """True where all these ranks are numbers within the group: the job's ranks are not in the text."""
    odd_call: str = ""
    """The call of the ranks that are behind, where it is of another operation than the others'."""


def find_cause(evidence: JobEvidence) -> Cause | None:
    """Finds the failure that ended the job; None where nothing did. What came before more training was no end of it."""
    events = _last_failures(evidence)
    if not events:
        return None
    first = _first(events)
    rest = [event for event in events if event is not first]
    first = _explained(first._replace(writer=_named(first, rest)), evidence.warned)
    first = _reasoned(first, evidence)
    if first.weight is Weight.FAILED and first.writer == Writer():
        own = entities(f"{first.line}\n{first.more}")
        if rank := only(own, "rank"):  # a host by itself may be whom it did not reach
            first = first._replace(writer=Writer(int(rank), host=only(own, "host") or None))
    if first.weight is Weight.DIED and first.writer == Writer() and not suspects(first.named):
        lost = (it.named for it in rest if it.weight is Weight.DIED and suspects(it.named))
        first = first._replace(named=next(lost, first.named))
    same = [event for event in rest if event.code == first.code and event.writer != first.writer]
    return Cause(first, tuple(same), tuple(event for event in rest if event.code != first.code))


def _explained(first: Event, warned: Sequence[Event]) -> Event:
    """The failure, with what was warned of before it: a state that came first is its reason."""
    reason = next((it for it in warned if it.code == first.code and it.place < first.place), None)
    if reason is None or first.weight is Weight.FAILED:
        return first
    return first._replace(kind=reason.kind, summary=f"{reason.summary}; then {first.summary}"[:400])


def _reasoned(first: Event, evidence: JobEvidence) -> Event:
    """A wait, an end without a reason and a message of no kind, with what was said before it and brought it about."""
    own = is_cause(first.line) or is_cause(first.more)
    if first.kind not in _BROAD_ENDS and (own or first.weight not in _EFFECTS) or first.kind in _OF_ITS_OWN:
        return first
    told = _told_before(first, evidence)
    if not told:
        return first
    quoted = dict.fromkeys(
        quote(it.summary if it.kind == "said" else it.line, _QUOTED_CHARACTERS) for it in (told[0], told[-1])
    )
    summary = f"{'; '.join(quoted)}; then {first.summary}"[:400]
    reason, writer = told[-1], _of_reason(told[-1], first, evidence)
    weight = first.weight if first.weight is Weight.WAITED else Weight.FAILED
    return first._replace(
        kind="said", weight=weight, summary=summary, line=reason.line, place=reason.place, writer=writer
    )


def _told_before(first: Event, evidence: JobEvidence) -> Sequence[Event]:
    """The first line that tells of a cause; of an end that says nothing, else the lines just before it. The message on
    a lost daemon names its node, so that these tell no more."""
    before = [it for it in evidence.said if _precedes(it, first, evidence)]
    causes = [it for it in (*before, *evidence.events) if is_cause(it.line) and _precedes(it, first, evidence)]
    if causes or first.kind not in _BROAD_ENDS or first.kind == "daemon_lost":
        return sorted(causes, key=lambda it: (it.place.file != first.place.file, it.place.file, it.place.offset))[:1]
    block = _block_before(first.place, [it for it in before if it.place.file == first.place.file])
    return [it for it in block if not is_vague(it.line)] or block


def _of_reason(reason: Event, first: Event, evidence: JobEvidence) -> Writer:
    """Whose the failure is: who says the reason, else the one process of its file. Else whoever waits is another one:
    the only rank that did not come, if one did not."""
    writer = reason.writer if reason.writer != Writer() else _owner(reason.place.file, evidence)
    if writer is not None or first.weight is not Weight.WAITED:
        return first.writer if writer is None else writer
    waits = find_waiting(evidence)
    return Writer(waits[0].missing[0]) if waits and len(waits[0].missing) == 1 else Writer()


def _owner(file: int, evidence: JobEvidence) -> Writer | None:
    """The one process that wrote all of the file that names a process; None where several did, or nothing tells."""
    writers = {it.writer for it in (*evidence.events, *evidence.said) if it.place.file == file} - {Writer()}
    return writers.pop() if len(writers) == 1 else None


def _precedes(said: Event, first: Event, evidence: JobEvidence) -> bool:
    """Whether a line can tell why: it stands before a failure, of any process, and no training after it."""
    place = said.place
    if place.file == first.place.file:
        return place.offset < first.place.offset and first.place.progress - place.progress < _PROGRESS_BETWEEN
    dated = place.dated and first.place.dated and place.seconds is not None and first.place.seconds is not None
    if dated and (place.seconds or 0.0) > (first.place.seconds or 0.0):
        return False
    return evidence.progress[place.file] - place.progress < _PROGRESS_BETWEEN


def _block_before(place: Place, said: Sequence[Event]) -> list[Event]:
    """The lines that stand close before a place, each close before the next, with no training between."""
    found: list[Event] = []
    until = place.offset
    for it in reversed(said):
        if until - it.place.offset > _CLOSE_CHARACTERS or it.place.progress != place.progress:
            break
        found.append(it)
        until = it.place.offset
    return found[::-1]


def _last_failures(evidence: JobEvidence) -> list[Event]:
    """The events since training went on last, in the order of the input."""
    kept: list[Event] = []
    by_file: dict[int, list[Event]] = {}
    for event in evidence.events:
        by_file.setdefault(event.place.file, []).append(event)
    for file, events in by_file.items():
        following = [event.place.progress for event in events[1:]] + [evidence.progress[file]]
        start = 0
        for place, (event, after) in enumerate(zip(events, following, strict=True)):
            lines = after - event.place.progress
            later = events[place + 1 :]
            restarted = event.code == "JOB_PREEMPTED" and later and (lines or any(is_cause(it.line) for it in later))
            if lines >= _SURVIVING_LINES or restarted:  # a job that is queued again writes into the same file
                start = place + 1
        kept += events[start:]
    return kept


def _first(events: Sequence[Event]) -> Event:
    told = [event for event in events if event.weight > Weight.SUMMARY]
    if not told:
        order = _order(events)
        return min(events, key=lambda event: (event.kind in ("summary", "status"), order(event)))
    starved = [event for event in told if event.code == "JOB_HOST_OUT_OF_MEMORY"]
    order = _order(told)
    earliest = min(told, key=order)
    if starved and _explained_by_memory(earliest):
        return min(starved, key=order)
    if earliest.kind == "nccl_reason":  # a warning of NCCL's that a rule knows says more
        return min(
            (event for event in told if event.code == earliest.code and _is_known(event)), key=order, default=earliest
        )
    if earliest.weight is Weight.STOPPED:
        return _who_stopped(earliest, events)
    if earliest.weight is Weight.WAITED:
        timeless = all(event.place.seconds is None for event in told)
        concrete = [event for event in told if timeless and event.code in _CONCRETE and event.weight is Weight.FAILED]
        if concrete:
            return min(concrete, key=order)
        died = [event for event in told if event.weight is Weight.DIED or event.kind == "node_failed"]
        if died:  # launchers report a death after the peers have complained of it
            return min(died, key=order)
    return earliest


def _is_known(event: Event) -> bool:
    return event.weight is Weight.FAILED and event.kind != "nccl_reason"


def _who_stopped(stopped: Event, events: Sequence[Event]) -> Event:
    """The event that made somebody stop the job: the scheduler, whose word may come after the signal; or, where Slurm
    cancelled the step, a task that had failed before."""
    scheduled = [event for event in events if event.code == "JOB_PREEMPTED" or event.kind == "node_failed"]
    if scheduled:
        return scheduled[0]
    ended = [event for event in events if event.kind in ("status", "aborted")]
    order = _order(events)
    before = [event for event in ended if order(event) < order(stopped)]
    return before[0] if before and stopped.kind == "cancelled" else stopped


def _named(first: Event, rest: Sequence[Event]) -> Writer:
    """The writer of the first failure; where its line does not name the rank, as a line does that reports the same."""
    own = first.writer
    killed = first.code == "JOB_HOST_OUT_OF_MEMORY"
    if own.rank is not None:
        return own
    for event in rest:
        other = event.writer
        alike = event.code == first.code or (killed and event.weight is Weight.DIED)
        says_more = other.rank is not None or (own.task is None and other.task is not None)
        if alike and says_more and (killed or not _differ(own, other)) and _weighs(event, first):
            return other._replace(host=other.host or own.host)
    is_told = own.task is not None or own.local_rank is not None
    if first.weight < Weight.DIED or first.code == "JOB_PREEMPTED" or is_told:
        return own
    ended = {event.writer for event in rest if event.kind in ("status", "aborted") and event.writer != Writer()}
    if own == Writer() and len(ended) == 1:
        return ended.pop()
    return own._replace(rank=first.next_rank if first.weight is Weight.FAILED else None)


def _differ(one: Writer, other: Writer) -> bool:
    """Whether both are known and are not the same process."""
    pairs = ((one.local_rank, other.local_rank), (one.task, other.task))
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _weighs(event: Event, first: Event) -> bool:
    return event.weight > Weight.SUMMARY or first.weight is Weight.SUMMARY


def _explained_by_memory(event: Event) -> bool:
    """Whether a lack of host memory, which Slurm reports at the end, explains it."""
    killed = event.weight is Weight.DIED or event.code in ("JOB_DATALOADER_DIED", "JOB_HOST_OUT_OF_MEMORY")
    return killed or event.weight is Weight.WAITED


def _order(events: Sequence[Event]) -> Callable[[Event], tuple[float, ...]]:
    """The order in time, as a key: by time, where all events have one; within one file by place; across files without
    dates by weight."""
    if len({event.place.file for event in events}) == 1:
        return lambda event: (event.place.offset,)
    if len({(event.place.seconds is None, event.place.dated) for event in events}) == 1 and events[0].place.seconds:
        return lambda event: (event.place.seconds or 0.0, -event.weight, event.place.file, event.place.offset)
    return lambda event: (-event.weight, event.place.file, event.place.offset)


def find_waiting(evidence: JobEvidence) -> tuple[Waiting, ...]:
    """Compares what the watchdogs of all ranks say, for each process group."""
    groups: dict[Group, list[WorkStatus]] = {}
    for status in _in_their_groups(evidence.statuses):
        groups.setdefault(status.group, []).append(status)
    found = [_waiting(group, statuses, _world(evidence, statuses)) for group, statuses in sorted(groups.items())]
    return tuple(sorted(found, key=lambda each: (not each.behind, not each.odd_call, -len(each.waiting))))


def _world(evidence: JobEvidence, statuses: Sequence[WorkStatus]) -> set[int]:
    """The ranks of the job, as far as its output shows them. Ranks count from 0: where most of the ranks up to the
    highest report, so do the others exist."""
    world = set(evidence.ranks_seen)
    if evidence.world_size is not None:
        return world | set(range(min(evidence.world_size, _MAX_WORLD)))
    reporting = {status.rank for status in statuses if status.rank is not None}
    upto = max(reporting, default=-1) + 1
    is_dense = len(reporting) >= _MIN_REPORTING and upto - len(reporting) <= _MAX_SILENT_SHARE * upto
    return world | set(range(upto)) if is_dense else world


def _in_their_groups(statuses: Sequence[WorkStatus]) -> Iterator[WorkStatus]:
    """Gives a status whose line names no group the one group in which other ranks waited in the same collective. In the
    group of all ranks, and where no line names another, a rank's number is that in the job."""
    by_work: dict[int | None, set[Group]] = {}
    for status in statuses:
        if status.group.name:
            by_work.setdefault(status.timed_out, set()).add(status.group)
    only_default = all(group.is_default for groups in by_work.values() for group in groups)
    for status in statuses:
        groups = by_work.get(status.timed_out, set()) if status.timed_out is not None else set()
        group = min(groups) if not status.group.name and len(groups) == 1 else status.group
        in_job = group.is_default or (not group.name and only_default)
        yield status._replace(group=group, rank=status.number if status.rank is None and in_job else status.rank)


def _waiting(group: Group, statuses: Sequence[WorkStatus], world: set[int]) -> Waiting:
    """`statuses`: of the ranks of one group. Where the lines of none say its rank in the job, numbers are those within
    the group; where those of some do, the others are left out."""
    within = all(status.rank is None for status in statuses)
    own = {
        (status.number if within else status.rank): status for status in statuses if within or status.rank is not None
    }
    by_rank = {rank: status for rank, status in own.items() if rank is not None}
    numbers = Counter(status.timed_out for status in by_rank.values() if status.timed_out is not None)
    number = max(numbers, key=lambda each: (numbers[each], each)) if numbers else None
    ops: dict[str, list[int]] = {}
    for rank, status in by_rank.items():
        if status.op and status.timed_out == number:
            ops.setdefault(status.op, []).append(rank)
    behind = {
        rank
        for rank, status in by_rank.items()
        if number is not None and status.enqueued is not None and status.enqueued < number
    }
    others: dict[int, set[int]] = {}
    for rank, status in by_rank.items():
        if status.timed_out not in (None, number) and rank not in behind:
            others.setdefault(status.timed_out or 0, set()).add(rank)
    is_world = (group.is_default or not group.name) and not within
    missing = sorted(world - by_rank.keys()) if is_world and len(by_rank) < len(world) else []
    return Waiting(
        group,
        number,
        tuple((op, tuple(sorted(members))) for op, members in sorted(ops.items())),
        tuple(sorted(by_rank.keys() - behind - set().union(*others.values()))),
        tuple(sorted(behind)),
        tuple(missing),
        tuple((each, tuple(sorted(members))) for each, members in sorted(others.items())),
        within,
        _odd_call([by_rank[rank] for rank in sorted(behind)], ops),
    )


def _odd_call(behind: Sequence[WorkStatus], ops: Mapping[str, object]) -> str:
    """The call in which ranks wait that others have left behind, where those wait in another operation: then the ranks
    do not call the same collectives, and none is merely late. Empty: it is not so."""
    calls = {(status.op, status.timed_out) for status in behind if status.op and status.timed_out is not None}
    if not ops or len(calls) != 1 or len(calls) != len({status.op for status in behind}):
        return ""
    ((op, number),) = calls
    return "" if op in ops else f"{op}, number {number}"


def consequences(cause: Cause) -> list[str]:
    """The consequences of the cause, as sentences: the kind, and the number of processes."""
    grouped: dict[tuple[str, str], list[Event]] = {}
    for event in (*cause.same, *cause.later):
        grouped.setdefault((event.code, event.kind), []).append(event)
    return [_consequence(events) for events in list(grouped.values())[:_MAX_NAMED]]


def _consequence(events: Sequence[Event]) -> str:
    writers = {event.writer for event in events}
    return f"{events[0].summary[:160]} ({len(writers)} process{'es' if len(writers) > 1 else ''})"


def ranks_of(events: Iterable[Event]) -> set[int]:
    return {event.writer.rank for event in events if event.writer.rank is not None}
