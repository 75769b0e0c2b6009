"""What can take this node away, and what is there of it now: `laggard healthcheck --explain-drain`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from laggard.catalogue.findings import all_types, known_type
from laggard.kit.majority import grouped
from laggard.kit.parts import Line
from laggard.kit.words import ascii_line, counted
from laggard.model import Finding, ProbeResult, Report, Severity, Verdict
from laggard.wire.accepted import EVIDENCE

AUDIT_SCHEMA: Final = "laggard.gate_audit/1"
TAKES, ACCEPTED, WARNS, UNKNOWN, QUIET, NOT_HERE = "takes", "accepted", "warns", "unknown", "quiet", "not_here"
_TOLD: Final[Mapping[str, tuple[str, str]]] = {
    TAKES: ("takes this node now", "critical"),
    ACCEPTED: ("is accepted: it takes no node meanwhile", "warning"),
    WARNS: ("is there, and takes no node", "warning"),
    UNKNOWN: ("cannot be told, and takes no node", "warning"),
    QUIET: ("not found", ""),
}


class AuditedCode(msgspec.Struct, frozen=True):
    """A code that can take the node away. `state`: takes, accepted, warns, unknown, quiet, or not_here where no
    probe of this run judges it. `now`: what there is of it, a line for each finding, or why it is not judged."""

    code: str
    probe: str
    state: str
    now: tuple[str, ...]
    rule: str
    looks_like_it: str
    doc: str


class GateAudit(msgspec.Struct, frozen=True):
    """All codes that can take a node away, in the order of their states."""

    node: str
    verdict: Verdict
    codes: tuple[AuditedCode, ...]
    schema: str = AUDIT_SCHEMA


def audit(report: Report) -> GateAudit:
    """The audit of a report in which findings are as the gate judges them. A critical finding of a code that nothing
    is written about takes the node like any other, and is listed."""
    draining = {it.code for it in all_types() if it.draining_probe}
    taking = (it for it in report.findings if it.code in draining or it.severity is Severity.CRITICAL)
    by_code = grouped(taking, lambda finding: finding.code)
    results = {result.name: result for result in report.probes}
    raised = {report.findings[place].code: it.name for it in report.probes for place in it.findings}
    codes = [_audited(code, by_code.get(code, ()), results, raised) for code in sorted({*draining, *by_code})]
    order = [*_TOLD, NOT_HERE]
    codes.sort(key=lambda each: order.index(each.state))
    return GateAudit(report.node, report.verdict, tuple(codes))


def _audited(
    code: str, findings: Iterable[Finding], results: Mapping[str, ProbeResult], raised: Mapping[str, str]
) -> AuditedCode:
    known = known_type(code)
    probe = (known and known.draining_probe) or raised.get(code, "")
    state, now = _state(tuple(findings), results.get(probe))
    rule, healthy = (known.apart, known.healthy) if known else ("", "")
    return AuditedCode(code, probe, state, now, rule, healthy, f"docs/findings/{code}.md")


def _state(findings: tuple[Finding, ...], result: ProbeResult | None) -> tuple[str, tuple[str, ...]]:
    told = tuple(f"{each.device} {each.summary}" for each in findings)
    if any(each.severity is Severity.CRITICAL for each in findings):
        return TAKES, told
    if findings:
        return ACCEPTED if any(EVIDENCE in each.evidence for each in findings) else WARNS, told
    if result is None:
        return NOT_HERE, ("no probe of this profile looks for it",)
    if result.verdict is Verdict.UNKNOWN:
        return UNKNOWN, (result.reason,)
    if result.verdict is Verdict.SKIPPED:
        return NOT_HERE, (result.reason,)
    return QUIET, ()


def audit_lines(audited: GateAudit) -> Iterator[Line]:
    """The answer first: what takes the node; then each code that is judged here, with its rule and what looks like it;
    last the codes that are not."""
    yield Line(_answer(audited), "critical" if _of(audited, TAKES) else "ok")
    for each in audited.codes:
        if each.state == NOT_HERE:
            continue
        words, style = _TOLD[each.state]
        yield Line("")
        yield Line(f"{each.code} {words}", style)
        yield from (Line(ascii_line(f"  Now: {text}")) for text in each.now)
        if each.rule:
            yield Line(f"  Rule: {each.rule}")
            yield Line(f"  Healthy, and looks like it: {each.looks_like_it}")
    reasons = grouped(_of(audited, NOT_HERE), lambda each: each.now[0])
    if reasons:
        yield Line("")
        yield Line("Not judged here:")
        for reason, judged in reasons.items():
            yield Line(ascii_line(f"  {', '.join(each.code for each in judged)}: {reason}"), "aside")


def _of(audited: GateAudit, state: str) -> tuple[AuditedCode, ...]:
    return tuple(each for each in audited.codes if each.state == state)


def _answer(audited: GateAudit) -> str:
    taking = [each.code for each in _of(audited, TAKES)]
    judged = len(audited.codes) - len(_of(audited, NOT_HERE))
    if taking:
        return f"{', '.join(taking)} would take {audited.node} away now."
    unknown = len(_of(audited, UNKNOWN))
    rest = f"; of {counted(unknown, 'code')} it cannot be told" if unknown else ""
    return f"Nothing would take {audited.node} away now; {judged} of {len(audited.codes)} codes are judged here{rest}."
