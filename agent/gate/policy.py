"""Decides what follows from a report: the exit status, and whether SLURM drains or resumes the node.

Three guards come before every drain: the kill-switch file (checked before any probe runs), the mode, the cluster's cap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.agent.gate.slurm import Slurm, SlurmError
from laggard.model import EXIT_CODES, Report, Severity, Verdict

REPORT_ONLY: Final = "report-only"
ENFORCE: Final = "enforce"
MODES: Final = (REPORT_ONLY, ENFORCE)

REJECT: Final = "gate: reject"
PASS: Final = "gate: pass"
"""The lines that the scripts of deploy/slurm take for a verdict. A crash or an exit status alone is none."""


class GatePolicy(NamedTuple):
    """What the gate may do. `mode`: what SLURM makes of the exit status, one of MODES; None where a person asks.
    `drain_refusal` returns why this node may not be drained now, empty where it may be; it is called only where a drain
    or a rejection is due."""

    mode: str | None
    drain: bool
    resume: bool
    slurm: Slurm
    drain_refusal: Callable[[], str]


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
        return Decision(status, (f"{PASS}, not drained: {refusal}",))
    messages = _drain(reason, policy) if policy.drain else ()
    return Decision(1, (*messages, REJECT) if policy.mode else messages)


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
