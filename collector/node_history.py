"""The history of a machine, and in words: how often it failed, how long it was down, what was repaired and what came
back. Pure.

A failure is a time in which the machine had a critical finding: one cause makes several (a GPU that is lost, an Xid, a
GPU that is missing), so findings that overlap are one failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from laggard.collector.incidents.incident import (
    FAULT_REASONS,
    REASONS,
    Fault,
    HistoryState,
    Incident,
    MachineRows,
    NodeName,
    Return,
)
from laggard.kit.words import counted, printable_line, utc_text

LATELY_SECONDS: Final = 30 * 86400.0
"""The time whose failures make a repeat offender."""

OFTEN: Final = 3
"""The number of failures within it from which on a machine is one; also one that came back within a week. laggard's
choice."""

MAX_FAULTS: Final = 1000
"""The most faults of a machine that are counted, the newest."""

MAX_SHOWN: Final = 100
"""The most faults, and the most incidents, of an answer, the newest."""


MAX_NAMES: Final = 8
"""The most former names of a machine whose incidents are looked up."""


class NodeHistoryDocument(Struct, frozen=True):
    """`laggard.node_history/1`: what is known of the machine that is called `node` now. `machine`: one of its GPUs'
    UUIDs, empty where they are not known; `names`: all names that it had. It was watched since `watched_since` (Unix
    seconds; None: its reports are not kept). `failures` are times in which it had a critical finding,
    `failures_lately` those of the last 30 days; `mtbf_seconds` the mean time from the end of one to the begin of the
    next (None: there was none), `mttr_seconds` the mean time until a failure was over (None: none is over yet).
    `repaired`: by code, the findings that were critical and went; `returned`: of what is counted, how much had been
    over less than a week before. `is_repeat_offender`: it failed three times in 30 days, or again within a week of a
    repair."""

    node: str
    now: float
    machine: str = ""
    names: tuple[NodeName, ...] = ()
    watched_since: float | None = None
    failures: int = 0
    failures_lately: int = 0
    mtbf_seconds: float | None = None
    mttr_seconds: float | None = None
    repaired: dict[str, int] = {}
    returned: int = 0
    is_repeat_offender: bool = False
    faults: tuple[Fault, ...] = ()
    incidents: tuple[Incident, ...] = ()
    history: HistoryState = HistoryState("on")
    schema: str = "laggard.node_history/1"


class Failures(NamedTuple):
    """The failures of one machine. `down`: their times, each (begin, end), the end None of one that lasts."""

    down: tuple[tuple[float, float | None], ...]
    lately: int
    mtbf_seconds: float | None
    mttr_seconds: float | None
    returned: int

    @property
    def is_repeat_offender(self) -> bool:
        return self.lately >= OFTEN or self.returned > 0


def failures(faults: Iterable[Fault], watched_since: float, now: float) -> Failures:
    """The failures among a machine's faults."""
    counted = [it for it in faults if it.is_failure]
    down = _joined([(it.opened_at, it.closed_at) for it in counted])
    over = [end - begin for begin, end in down if end is not None]
    was_down = sum((now if end is None else end) - begin for begin, end in down)
    watched = max(0.0, now - watched_since - max(0.0, was_down))
    return Failures(
        down,
        sum(end is None or end >= now - LATELY_SECONDS for _, end in down),
        watched / len(down) if down else None,
        sum(over) / len(over) if over else None,
        sum(it.returned is not None for it in counted),
    )


def _joined(times: Sequence[tuple[float, float | None]]) -> tuple[tuple[float, float | None], ...]:
    """The times without overlaps, in order."""
    joined: list[tuple[float, float | None]] = []
    for begin, end in sorted(times, key=lambda it: it[0]):
        if joined and (joined[-1][1] is None or begin <= joined[-1][1]):
            last = joined[-1][1]
            joined[-1] = joined[-1][0], None if last is None or end is None else max(last, end)
        else:
            joined.append((begin, end))
    return tuple(joined)


def node_history(
    node: str,
    faults: Sequence[Fault],
    names: Sequence[NodeName],
    incidents: Sequence[Incident],
    now: float,
    history: HistoryState,
) -> NodeHistoryDocument:
    """`faults` and `incidents`: the newest first; `names`: those of the machine, the current one first."""
    since = min((*(it.since for it in names), *(it.opened_at for it in faults)), default=None)
    found = failures(faults, now if since is None else since, now)
    repaired = Counter(it.code for it in faults if it.is_failure and it.closed_because == "repaired")
    return NodeHistoryDocument(
        node=node,
        now=now,
        machine=next((it.machine for it in names if it.machine), ""),
        names=tuple(names),
        watched_since=since,
        failures=len(found.down),
        failures_lately=found.lately,
        mtbf_seconds=found.mtbf_seconds,
        mttr_seconds=found.mttr_seconds,
        repaired=dict(repaired.most_common()),
        returned=found.returned + sum(it.returned is not None for it in incidents),
        is_repeat_offender=found.is_repeat_offender,
        faults=tuple(faults[:MAX_SHOWN]),
        incidents=tuple(incidents[:MAX_SHOWN]),
        history=history,
    )


def history_of_rows(
    node: str, rows: MachineRows, of_name: Callable[[str], Iterable[Incident]], now: float, state: HistoryState
) -> NodeHistoryDocument:
    """`of_name`: the newest incidents of a name."""
    names = sorted(rows.names, key=lambda it: (it.node != node, -it.seen_at))
    found = {it.id: it for it in of_name(node) if it.opened_at > rows.others_until}  # until then of another machine
    for name in names[1 : MAX_NAMES + 1]:
        found |= {it.id: it for it in of_name(name.node) if name.since <= it.opened_at <= name.seen_at}
    newest = sorted(found.values(), key=lambda it: -it.id)
    return node_history(node, rows.faults, names, newest, now, state)


class Offender(NamedTuple):
    """A machine that fails again and again, by the name that it has now."""

    node: str
    failures: Failures


def offenders(faults: Iterable[Fault], since: float, now: float, most: int) -> tuple[Offender, ...]:
    """The repeat offenders, at most `most` of them, those that failed most often first. `since`: from when on all
    machines were watched."""
    by_machine: dict[str, list[Fault]] = {}
    for fault in faults:
        by_machine.setdefault(fault.machine or fault.node, []).append(fault)
    found = (
        Offender(max(those, key=lambda it: it.id).node, failures(those, since, now)) for those in by_machine.values()
    )
    named = [it for it in found if it.failures.is_repeat_offender]
    named.sort(key=lambda it: (-it.failures.lately, -it.failures.returned, it.node))
    return tuple(named[:most])


_SHOWN = 20
"""The most faults, and the most incidents, that are told in text, the newest."""


def lasted_text(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`, `2 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def returned_text(it: Return, began_at: float) -> str:
    """The words for what came back within a week."""
    times = "" if it.times == 1 else f", the {counted(it.times, 'time')} before within a week"
    return f"came back: it had been over for {lasted_text(began_at - it.ended_at)}{times}"


def history_lines(it: NodeHistoryDocument) -> Iterator[str]:
    """The answer, the figures, then faults and incidents, the newest first."""
    yield _sentence(it)
    if it.history.state in ("off", "failed"):
        yield f"  No history is kept: {it.history.reason}"
    if it.watched_since is not None:
        yield f"  watched since {utc_text(it.watched_since)}"
    others = [name for name in it.names if name.node != it.node]
    for name in others:
        yield f"  was called {name.node} from {utc_text(name.since)} to {utc_text(name.seen_at)}"
    if it.mtbf_seconds is not None:
        yield f"  time between failures: {lasted_text(it.mtbf_seconds)} on average, of {it.failures}"
    if it.mttr_seconds is not None:
        yield f"  time to repair: {lasted_text(it.mttr_seconds)} on average"
    if it.repaired:
        yield f"  repaired: {', '.join(f'{code} {count} times' for code, count in it.repaired.items())}"
    yield from _listed(f"{counted(len(it.faults), 'finding')}:", [_fault_lines(fault, it.now) for fault in it.faults])
    yield from _listed(
        f"{counted(len(it.incidents), 'incident')}:", [_incident_line(one, it.now) for one in it.incidents]
    )


def _sentence(it: NodeHistoryDocument) -> str:
    name = printable_line(it.node)
    if not (it.faults or it.incidents):
        return f"Nothing is known against {name}."
    again = f", {counted(it.returned, 'thing')} came back within a week" if it.returned else ""
    often = " It is a repeat offender." if it.is_repeat_offender else ""
    failures = f"{counted(it.failures, 'failure')}, {it.failures_lately} in the last 30 days"
    return f"{name}: {failures}{again}; {counted(len(it.incidents), 'incident')}.{often}"


def _listed(head: str, items: list[str]) -> Iterator[str]:
    if items:
        yield head
        yield from items[:_SHOWN]
    if len(items) > _SHOWN:
        yield f"  and {len(items) - _SHOWN} older ones"


def _fault_lines(it: Fault, now: float) -> str:
    end = now if it.closed_at is None else it.closed_at
    state = "open" if it.closed_at is None else f"over, {FAULT_REASONS.get(it.closed_because or '', it.closed_because)}"
    counts = "" if it.is_failure else ", no failure"
    back = f"; {returned_text(it.returned, it.opened_at)}" if it.returned else ""
    what = f"{it.code} {it.device} ({it.severity.value}{counts})"
    return f"  {utc_text(it.opened_at)}, {lasted_text(end - it.opened_at)}, {state}: {what}{back}"


def _incident_line(it: Incident, now: float) -> str:
    end = now if it.closed_at is None else it.closed_at
    state = "open" if it.closed_at is None else f"closed, {REASONS.get(it.closed_because or '', it.closed_because)}"
    back = f"; {returned_text(it.returned, it.opened_at)}" if it.returned else ""
    return f"  {utc_text(it.opened_at)}, {lasted_text(end - it.opened_at)}, {state}: {it.what}, job {it.job_id}{back}"
