"""A machine's history in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.collector.incidents.fault import FAULT_REASONS, Fault
from laggard.collector.incidents.incident import REASONS, Incident, Return
from laggard.collector.node_history import NodeHistoryDocument
from laggard.text.words import counted, printable_line, utc_text

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
