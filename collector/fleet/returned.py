"""Says in a finding's line that it came back within a week. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from laggard.collector.incidents.fault import Fault
from laggard.model import MAX_SUMMARY
from laggard.wire.node_finding import NodeFinding

EVIDENCE = "came_back"
"""The key of a finding's evidence: how often it was over within the week before, and when it last ended (Unix time)."""


def with_returns(findings: Iterable[NodeFinding], faults: Sequence[Fault]) -> tuple[NodeFinding, ...]:
    """The findings, each with what its fault tells of the week before."""
    back = {(it.node, it.code, it.device): it for it in faults if it.returned is not None}
    if not back:
        return tuple(findings)
    return tuple(_told(it, back.get((it.node, it.finding.code, it.finding.device))) for it in findings)


def _told(found: NodeFinding, fault: Fault | None) -> NodeFinding:
    if fault is None or fault.returned is None:
        return found
    it = fault.returned
    days = max(0.0, fault.opened_at - it.ended_at) / 86400
    over = f"{days:.1f} days" if days >= 1 else f"{24 * days:.1f} hours"
    times = "" if it.times == 1 else f", and {it.times} times within the week before"
    words = f" (came back: it had been over for {over}{times})"
    summary = found.finding.summary[: MAX_SUMMARY - len(words)] + words
    evidence = {**found.finding.evidence, EVIDENCE: {"times": it.times, "ended_at": round(it.ended_at)}}
    return structs.replace(found, finding=structs.replace(found.finding, summary=summary, evidence=evidence))
