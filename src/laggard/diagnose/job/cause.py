"""The cause of a job's end: the failure that came first, and the failures that followed from it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.events import Event, Weight, WorkStatus, Writer
from laggard.diagnose.job.reader import JobEvidence

_SURVIVING_LINES: Final = 200
"""The number of lines of progress after a failure that show that the training went on. What stood in a rank's output
buffer, at most 8 KiB, comes out at its end and is less."""
_MAX_NAMED: Final = 8


class Cause(NamedTuple):
    first: Event
    same: tuple[Event, ...]
    """Events like it, of other processes."""
    later: tuple[Event, ...]
    """The events that followed from it, or came beside it."""


class Waiting(NamedTuple):
    """The ranks that waited in collectives of one process group, and for whom."""

    group: str
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


def find_cause(evidence: JobEvidence) -> Cause | None:
    """Finds the failure that ended the job; None where nothing did. What came before more training was no end of it."""
    events = _last_failures(evidence)
    if not events:
        return None
    first = _first(events)
    rest = [event for event in events if event is not first]
    first = first._replace(writer=_named(first, rest))
    same = [event for event in rest if event.code == first.code and event.writer != first.writer]
    return Cause(first, tuple(same), tuple(event for event in rest if event.code != first.code))


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
            if after - event.place.progress >= _SURVIVING_LINES:
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
    if earliest.weight is Weight.STOPPED:
        return _who_stopped(earliest, events)
    if earliest.weight is Weight.WAITED:
        died = [event for event in told if event.weight is Weight.DIED]
        if died:  # launchers report a death after the peers have complained of it
            return min(died, key=order)
    return earliest


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
    return own


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
    groups: dict[str, list[WorkStatus]] = {}
    for status in _named_statuses(evidence.statuses):
        groups.setdefault(status.group, []).append(status)
    world = set(evidence.ranks_seen)
    if evidence.world_size is not None and evidence.world_size <= 1 << 17:
        world |= set(range(evidence.world_size))
    found = [_waiting(group, statuses, world) for group, statuses in sorted(groups.items())]
    return tuple(sorted(found, key=lambda each: (not each.behind, -len(each.waiting))))


def _named_statuses(statuses: Sequence[WorkStatus]) -> Iterable[WorkStatus]:
    """Gives a status whose line names no group the one group in which other ranks waited in the same collective."""
    by_number: dict[int | None, set[str]] = {}
    for status in statuses:
        if status.group:
            by_number.setdefault(status.timed_out, set()).add(status.group)
    for status in statuses:
        groups = by_number.get(status.timed_out, set()) if status.timed_out is not None else set()
        yield status._replace(group=min(groups)) if not status.group and len(groups) == 1 else status


def _waiting(group: str, statuses: Sequence[WorkStatus], world: set[int]) -> Waiting:
    numbers = Counter(status.timed_out for status in statuses if status.timed_out is not None)
    number = max(numbers, key=lambda each: (numbers[each], each)) if numbers else None
    ops: dict[str, list[int]] = {}
    for status in statuses:
        if status.op and status.timed_out == number:
            ops.setdefault(status.op, []).append(status.rank)
    behind = [
        status.rank
        for status in statuses
        if number is not None and status.enqueued is not None and status.enqueued < number
    ]
    others: dict[int, set[int]] = {}
    for status in statuses:
        if status.timed_out not in (None, number) and status.rank not in behind:
            others.setdefault(status.timed_out or 0, set()).add(status.rank)
    ranks = {status.rank for status in statuses}
    is_world = group in ("", "PG 0", "default_pg")
    missing = sorted(world - ranks) if is_world and len(ranks) < len(world) else []
    return Waiting(
        group,
        number,
        tuple((op, tuple(sorted(members))) for op, members in sorted(ops.items())),
        tuple(sorted(ranks - set(behind) - set().union(*others.values()))),
        tuple(sorted(behind)),
        tuple(missing),
        tuple((each, tuple(sorted(members))) for each, members in sorted(others.items())),
    )


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
