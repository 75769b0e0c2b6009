"""Which acknowledgement covers a finding, and what becomes of the finding then. Pure.

It stays what it was when it was acknowledged: on another device, graver, or of another kind (another Xid) it is another
finding, which nobody has acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from laggard.model import MAX_SUMMARY, SEVERITIES, Finding, Severity
from laggard.text.words import clipped, printable_line, utc_text
from laggard.wire.acknowledgement import ALL_CODES, ANY_DEVICE, Acknowledgement, Covered

EVIDENCE: Final = "acknowledged"
"""The name in a finding's evidence under which its acknowledgement stands: `by`, `until`, `reason` and the `severity`
that the finding had."""

KINDS: Final = ("xid", "sxid", "kind", "counter")
"""The names in the evidence of what tells two findings of one code and device apart."""

_MAX_REASON: Final = 120


def kind_of(finding: Finding) -> str:
    """`xid 109`; empty for findings of one kind."""
    return next((f"{name} {finding.evidence[name]}"[:64] for name in KINDS if name in finding.evidence), "")


def covered(finding: Finding) -> Covered:
    """The finding as an acknowledgement keeps it."""
    return Covered(finding.device, severity_of(finding).value, kind_of(finding))


def severity_of(finding: Finding) -> Severity:
    """The severity that the finding had before it was acknowledged."""
    told = finding.evidence.get(EVIDENCE)
    before = told.get("severity") if isinstance(told, dict) else None
    return next((it for it in SEVERITIES if it.value == before), finding.severity)


def find(
    acknowledgements: Iterable[Acknowledgement], node: str, finding: Finding, now: float
) -> Acknowledgement | None:
    """The acknowledgement that covers `finding` on `node` at the Unix time `now`; of several the last to end."""
    found = [it for it in acknowledgements if now < it.until and _covers(it, node, finding)]
    return max(found, key=lambda it: it.until, default=None)


def _covers(acknowledged: Acknowledgement, node: str, finding: Finding) -> bool:
    if node not in acknowledged.nodes or acknowledged.code not in (ALL_CODES, finding.code):
        return False
    return not acknowledged.covers or any(_is_as(it, finding) for it in acknowledged.covers)


def _is_as(known: Covered, finding: Finding) -> bool:
    severities = [it.value for it in SEVERITIES]
    gravest = severities.index(known.severity) if known.severity in severities else 0
    return (
        known.device in (ANY_DEVICE, finding.device)
        and severities.index(severity_of(finding).value) >= gravest
        and known.kind in ("", kind_of(finding))
    )


def with_acknowledgement(finding: Finding, known: Acknowledgement) -> Finding:
    """The finding as a warning at most, with who acknowledged it, until when and why."""
    severity = severity_of(finding)
    evidence = {**finding.evidence, EVIDENCE: _told(known, severity)}
    summary = clipped(f"{finding.summary} ({words(known)})", MAX_SUMMARY)
    lowered = Severity.WARNING if severity is Severity.CRITICAL else severity
    return structs.replace(finding, severity=lowered, summary=summary, evidence=evidence)


def without_words(finding: Finding) -> Finding:
    """The finding without what its acknowledgement says: who, until when and why."""
    told = finding.evidence.get(EVIDENCE)
    if not isinstance(told, dict):
        return finding
    evidence = {name: value for name, value in finding.evidence.items() if name != EVIDENCE}
    summary = finding.summary.removesuffix(f" ({told.get('words')})")
    return structs.replace(finding, summary=summary, evidence=evidence)


def _told(known: Acknowledgement, severity: Severity) -> Mapping[str, Any]:
    return {
        "by": known.by,
        "until": known.until,
        "reason": known.reason,
        "severity": severity.value,
        "words": words(known),
    }


def words(known: Acknowledgement) -> str:
    what = "maintenance" if known.code == ALL_CODES else "acknowledged"
    by, reason = printable_line(known.by, 64), printable_line(known.reason, _MAX_REASON)
    return f"{what} by {by} until {utc_text(known.until)}: {reason}"


def holding(acknowledgements: Iterable[Acknowledgement], now: float) -> tuple[Acknowledgement, ...]:
    """Those that have not ended, in the order in which they end."""
    return tuple(sorted((it for it in acknowledgements if now < it.until), key=lambda it: it.until))


def of_node(acknowledgements: Sequence[Acknowledgement], node: str) -> tuple[Acknowledgement, ...]:
    """Those of `node`, with no other node's name: an answer about one node is short."""
    return tuple(structs.replace(it, nodes=(node,)) for it in acknowledgements if node in it.nodes)
