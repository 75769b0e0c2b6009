"""Decides what follows from a report: the exit status, and whether SLURM drains or resumes the node.

Three guards come before every drain: the kill-switch file (checked before any probe runs), the mode, the cluster's cap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.gate.measure import Measured
from laggard.gate.settings import ENFORCE, REPORT_ONLY, GateSettings
from laggard.gate.slurm import Slurm, SlurmError
from laggard.model import EXIT_CODES, Report, Severity, Verdict
from laggard.text.report import headline

REJECT: Final = "gate: reject"
PASS: Final = "gate: pass"
UNFIT: Final = "gate: unfit"
"""The lines that the scripts of deploy/slurm take for a verdict; a crash or an exit status alone is none. A health
check rejects no job: its node is fit or unfit."""
WRONG_SETUP: Final = "WRONG SETUP"
"""Stands in each line about a mistake in the gate's own setup, for whoever reads the log."""


class Decision(NamedTuple):
    """The exit status, and the lines that tell what was done."""

    status: int
    messages: tuple[str, ...] = ()


def decide(settings: GateSettings, measured: Measured) -> Decision:
    """Decides on a report, and drains or resumes the node. The report's first line becomes the reason of a drain. Tells
    before what the gang says of other nodes, and what is wrong with the gate's setup."""
    report = measured.report
    decision = _act(settings, report, headline(report, measured.age))
    before = (*_gang_lines(settings, report), *_setup_lines(settings, report.node))
    return decision._replace(messages=(*before, *decision.messages))


def is_critical(report: Report) -> bool:
    return any(finding.severity is Severity.CRITICAL for finding in report.findings)


def _act(settings: GateSettings, report: Report, reason: str) -> Decision:
    mode = settings.slurm.mode
    if is_critical(report):
        return _on_critical(settings, report, reason)
    resumes = report.verdict is Verdict.OK and settings.slurm.resume and mode != REPORT_ONLY
    messages = _resume(settings.slurm_node(report.node)) if resumes else ()
    if mode is None:
        return Decision(EXIT_CODES[report.verdict], messages)
    return Decision(0, (f"{PASS}, {_why_not_critical(report)}", *messages))


def _on_critical(settings: GateSettings, report: Report, reason: str) -> Decision:
    policy, slurm = settings.slurm, settings.slurm_node(report.node)
    if policy.mode == REPORT_ONLY:
        return Decision(0, (f"{PASS}, {REPORT_ONLY}: with enforce it would be rejected",))
    if policy.mode is None and not policy.drain:
        return Decision(EXIT_CODES[report.verdict])
    from laggard.gate.drain_cap import drain_refusal  # few runs need it

    refusal = drain_refusal(policy.collector, report.node, settings.limit)
    if refusal:
        status = 0 if policy.mode else EXIT_CODES[report.verdict]
        stays = _stays_drained(slurm) if policy.is_health_check else ""
        return Decision(status, (f"{PASS}, {stays or f'not drained: {refusal}'}",))
    messages = _drain(slurm, reason) if policy.drain else ()
    word = UNFIT if policy.is_health_check else REJECT
    return Decision(1, (*messages, word) if policy.mode else messages)


def _stays_drained(slurm: Slurm) -> str:
    """Of a health check: the node, where laggard has drained it before, which no cap takes back; else empty."""
    try:
        node = slurm.show()
    except SlurmError:
        return ""
    is_ours = node.is_drained and node.has_laggards_reason
    return f"{slurm.node} stays drained: {node.reason}" if is_ours else ""


def _drain(slurm: Slurm, reason: str) -> tuple[str, ...]:
    try:
        return (f"slurm: {slurm.drain(reason)}",)
    except SlurmError as error:
        return (f"slurm: not drained: {error}",)


def _resume(slurm: Slurm) -> tuple[str, ...]:
    try:
        done = slurm.resume()
    except SlurmError as error:
        return (f"slurm: not resumed: {error}",)
    return (f"slurm: {done}",) if done else ()


def _why_not_critical(report: Report) -> str:
    return {
        Verdict.OK: "nothing critical",
        Verdict.FAIL: "warnings alone",
    }.get(report.verdict, "what is unknown rejects no job")


def _gang_lines(settings: GateSettings, report: Report) -> tuple[str, ...]:
    if settings.gang is None:
        return ()
    from laggard.gate.gang import gang_lines

    return gang_lines(report)


def _setup_lines(settings: GateSettings, node: str) -> tuple[str, ...]:
    """What is wrong with the gate's setup: of what would make it pass everything always, of the rest where that was
    asked for and there is time; of SLURM where the gate is to drain or resume."""
    policy = settings.slurm
    names_none = policy.mode == ENFORCE and not policy.collector
    if not settings.checks_setup and not names_none:
        return ()
    from laggard.gate.self_check import CHECK_SECONDS, NO_COLLECTOR, gate_problems  # most runs need none of it

    problems = [NO_COLLECTOR]
    if settings.checks_setup:
        if settings.limit.to_decide(CHECK_SECONDS) < CHECK_SECONDS:
            return ("gate: setup not checked: no time was left",)
        slurm = settings.slurm_node(node) if policy.drain or policy.resume else None
        problems = gate_problems(policy.collector, node, slurm, settings.limit)
    return tuple(f"gate: {WRONG_SETUP}: {problem}" for problem in problems)
