"""Decides what follows from a report: the exit status, and whether SLURM drains or resumes the node.

Three guards come before every drain: the kill-switch file (checked before any probe runs), the mode, the cluster's cap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.gate.slurm import Slurm, SlurmError
from laggard.model import EXIT_CODES, Report, Severity, Verdict

REPORT_ONLY: Final = "report-only"
ENFORCE: Final = "enforce"
MODES: Final = (REPORT_ONLY, ENFORCE)

REJECT: Final = "gate: reject"
PASS: Final = "gate: pass"
UNFIT: Final = "gate: unfit"
"""The lines that the scripts of deploy/slurm take for a verdict; a crash or an exit status alone is none. A health
check rejects no job: its node is fit or unfit."""


class GatePolicy(NamedTuple):
    """What the gate may do. `mode`: what SLURM makes of the exit status, one of MODES; None where a person asks.
    `drain_refusal` returns why this node may not be drained now, empty where it may be; it is called only where a drain
    or a rejection is due."""

    mode: str | None
    drain: bool
    resume: bool
    slurm: Slurm
    drain_refusal: Callable[[], str]

    @property
    def is_health_check(self) -> bool:
        """Whether no job is at stake: only a health check resumes nodes."""
        return self.resume


class Decision(NamedTuple):
    """The exit status, and the lines that tell what was done."""

    status: int
    messages: tuple[str, ...] = ()


def decide(report: Report, reason: str, policy: GatePolicy) -> Decision:
    """Decides on `report`, and drains or resumes the node. `reason`: the report's first line, which becomes the reason
    of a drain."""
    if is_critical(report):
        return _on_critical(report, reason, policy)
    messages = _resume(policy) if report.verdict is Verdict.OK and policy.resume and policy.mode != REPORT_ONLY else ()
    if policy.mode is None:
        return Decision(EXIT_CODES[report.verdict], messages)
    return Decision(0, (f"{PASS}, {_why_not_critical(report)}", *messages))


def is_critical(report: Report) -> bool:
    return any(finding.severity is Severity.CRITICAL for finding in report.findings)


def _on_critical(report: Report, reason: str, policy: GatePolicy) -> Decision:
    if policy.mode == REPORT_ONLY:
        return Decision(0, (f"{PASS}, {REPORT_ONLY}: with enforce it would be rejected",))
    if policy.mode is None and not policy.drain:
        return Decision(EXIT_CODES[report.verdict])
    refusal = policy.drain_refusal()
    if refusal:
        status = 0 if policy.mode else EXIT_CODES[report.verdict]
        return Decision(status, (f"{PASS}, {_stays_drained(policy) or f'not drained: {refusal}'}",))
    messages = _drain(reason, policy) if policy.drain else ()
    word = UNFIT if policy.is_health_check else REJECT
    return Decision(1, (*messages, word) if policy.mode else messages)


def _stays_drained(policy: GatePolicy) -> str:
    """Of a health check: the node, where laggard has drained it before, which no cap takes back; else empty."""
    if not policy.is_health_check:
        return ""
    try:
        node = policy.slurm.show()
    except SlurmError:
        return ""
    is_ours = node.is_drained and node.has_laggards_reason
    return f"{policy.slurm.node} stays drained: {node.reason}" if is_ours else ""


def _drain(reason: str, policy: GatePolicy) -> tuple[str, ...]:
    try:
        return (f"slurm: {policy.slurm.drain(reason)}",)
    except SlurmError as error:
        return (f"slurm: not drained: {error}",)


def _resume(policy: GatePolicy) -> tuple[str, ...]:
    try:
        done = policy.slurm.resume()
    except SlurmError as error:
        return (f"slurm: not resumed: {error}",)
    return (f"slurm: {done}",) if done else ()


def _why_not_critical(report: Report) -> str:
    return {
        Verdict.OK: "nothing critical",
        Verdict.FAIL: "warnings alone",
    }.get(report.verdict, "what is unknown rejects no job")
