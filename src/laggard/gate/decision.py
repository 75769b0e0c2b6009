"""Decides what follows from a report: the exit status, and whether SLURM drains or resumes the node.

Three guards come before every drain: the kill-switch file (checked before any probe runs), the mode, the cluster's cap.
And no drain that an operator took back is made again for the same evidence (`memory`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from laggard.gate.measure import Measured
from laggard.gate.memory import (
    Evidence,
    NodeMemory,
    Seen,
    critical_evidence,
    drained,
    forget_grant,
    is_from_before_resume,
    is_well,
    look,
    remember,
    remembered,
    resumed_by_laggard,
    unknowns,
)
from laggard.gate.settings import ENFORCE, REPORT_ONLY, GateSettings
from laggard.gate.slurm import DRAINED, REASON_LENGTH, RESUMED, RESUMED_BY_HAND, Slurm, SlurmError
from laggard.kit.words import utc_text
from laggard.model import EXIT_CODES, Finding, Report, Severity, Verdict
from laggard.probes.runner.report import finding_name, with_lowered
from laggard.wire.words import headline

REJECT: Final = "gate: reject"
PASS: Final = "gate: pass"
UNFIT: Final = "gate: unfit"
"""The lines that the scripts of deploy/slurm take for a verdict; a crash or an exit status alone is none. A health
check rejects no job: its node is fit or unfit."""
LATE: Final = f"{PASS}, no answer was there in time"
"""All that is said after the end of the gate's time: the script has said by then that there is no answer, or soon
does."""
WRONG_SETUP: Final = "WRONG SETUP"
"""Stands in each line about a mistake in the gate's own setup, for whoever reads the log."""
_NOT_CHECKED: Final = "gate: setup not checked"
"""Begins the line after which the scripts check the setup again next time."""


class Decision(NamedTuple):
    """The exit status, the lines that tell what was done, and the report with its findings as they were judged."""

    status: int
    messages: tuple[str, ...]
    report: Report


def decide(settings: GateSettings, measured: Measured) -> Decision:
    """Decides on a report, and drains or resumes the node. The report's first line becomes the reason of a drain. Tells
    before what the gang says of other nodes, what was over when the probes ran anew, and what is wrong with the gate's
    setup."""
    report, accepted = _with_accepted(settings, measured.report)
    report, waited = _without_jobs_files(settings, report)
    decision = _act(settings, report)
    is_of_job = settings.slurm.mode and not settings.slurm.is_health_check
    if is_of_job and settings.limit.is_over and not decision.status:
        return Decision(0, (LATE,), report)
    over = (f"gate: {line}" for line in measured.over)
    before = (*_gang_lines(settings, report), *over, *accepted, *waited, *_setup_lines(settings, report.node))
    return decision._replace(messages=(*before, *decision.messages))


def in_one_line(answer: str, messages: Sequence[str]) -> str:
    """The decision first, as the scripts print it: `drain: WHY`, or `pass: WHY; ...`. `answer`: the report's first
    line, which stays the first if there was nothing to decide."""
    passes = [line.removeprefix(f"{PASS}, ") for line in messages if line.startswith(f"{PASS}, ")]
    why = "; ".join((answer, *(line for line in messages if not line.startswith((REJECT, UNFIT, PASS)))))
    if any(line in (REJECT, UNFIT) for line in messages):
        return f"drain: {why}"
    return f"pass: {passes[0]}; {why}" if passes else why


def is_critical(report: Report) -> bool:
    return any(finding.severity is Severity.CRITICAL for finding in report.findings)


def _act(settings: GateSettings, report: Report) -> Decision:
    policy = settings.slurm
    if not is_critical(report):
        return _on_pass(settings, report)
    if policy.mode == REPORT_ONLY:
        return Decision(0, (f"{PASS}, {REPORT_ONLY}: with enforce it would be rejected",), report)
    if policy.mode is None and not policy.drain:
        return Decision(EXIT_CODES[report.verdict], (), report)
    return _on_critical(settings, report)


def _on_pass(settings: GateSettings, report: Report, lines: tuple[str, ...] = (), seen: Seen | None = None) -> Decision:
    """What follows where nothing is critical. `lines`: why that is so, where it is not plain; `seen`: the node, where
    SLURM was asked for it."""
    policy = settings.slurm
    resumed: tuple[str, ...] = ()
    well = policy.may_act and is_well(report, remembered(settings, report.node))
    if well:
        forget_grant()
    if policy.mode != REPORT_ONLY and well and policy.resume:
        resumed = _resume(settings, report.node, seen)
    elif policy.mode != REPORT_ONLY and policy.drain and seen is None:
        resumed = _notice_resume(settings, report.node)
    if policy.mode is None:
        return Decision(EXIT_CODES[report.verdict], (*lines, *resumed), report)
    return Decision(0, (*lines, f"{PASS}, {_why_not_critical(report)}", *resumed), report)


def _on_critical(settings: GateSettings, report: Report) -> Decision:
    from laggard.gate.drain_cap import drain_refusal  # few runs need it

    policy, slurm = settings.slurm, settings.slurm_node(report.node)
    memory = remembered(settings, report.node)
    if memory.resumed_at is not None:  # known without asking anybody: nobody counts a drain that is not made
        report, old = _without_old_evidence(report, critical_evidence(report.findings), memory, settings)
        if not is_critical(report):
            return _on_pass(settings, report, old)
    is_hole = any(it.code == "JOBS_FAIL_AT_ONCE" and it.severity is Severity.CRITICAL for it in report.findings)
    if refusal := drain_refusal(
        policy.collector, report.node, settings.limit, is_hole and settings.slurm.mode == ENFORCE
    ):
        status = 0 if policy.mode else EXIT_CODES[report.verdict]
        stays = _stays_drained(slurm) if policy.is_health_check else ""
        return Decision(status, (f"{PASS}, {stays or f'not drained: {refusal}'}",), report)
    seen: Seen | None = None
    known: tuple[str, ...] = ()
    if policy.drain or policy.resume:
        evidence = critical_evidence(report.findings)
        seen = look(settings, report.node, evidence.values())
        report, known = _without_old_evidence(report, evidence, seen.memory, settings)
        if not is_critical(report):
            return _on_pass(settings, report, known, seen)
    messages = (*known, *(_drain(settings, report, seen) if policy.drain and seen else ()))
    word = UNFIT if policy.is_health_check else REJECT
    return Decision(1, (*messages, word) if policy.mode else messages, report)


def _with_accepted(settings: GateSettings, report: Report) -> tuple[Report, tuple[str, ...]]:
    """The report in which findings that root accepts here are warnings at most, and a line for each that was critical.
    The agent may have marked some before."""
    if not report.findings or not os.path.lexists(settings.accepted):
        return report, ()
    from laggard.wire.accepted import EVIDENCE, AcceptedError, lowered, read_accepted

    try:
        accepted = read_accepted(settings.accepted)
    except AcceptedError as error:
        return report, (f"gate: nothing is accepted on this node: {error}",)
    known = lowered(report.findings, accepted, time.time())
    report = with_lowered(report, known, settings.subject.profile.warnings_fail)
    marks = ((it, it.evidence.get(EVIDENCE)) for it in report.findings)
    return report, tuple(
        f"gate: {finding_name(it)} is no reason to drain, {mark.get('words')}"
        for it, mark in marks
        if isinstance(mark, dict) and mark.get("severity") == Severity.CRITICAL.value
    )


def _without_jobs_files(settings: GateSettings, report: Report) -> tuple[Report, tuple[str, ...]]:
    """The report in which a file system is a warning that is full of the files of a job of SLURM that has just ended:
    the site cleans up after it, in epilogs that may come after this one. Of one that runs the probe `disks` knows.
    Root's files are the machine's, also where root runs jobs."""
    ended = {*map(str, report.facts.get("jobs", {}).get("users", {}).get("ended", ()))} - {"0"}
    why = "filled by a job, whose clean-up is waited for"
    critical = ((place, it) for place, it in enumerate(report.findings) if it.severity is Severity.CRITICAL)
    largest = ((place, it, next(iter(it.evidence.get("bytes_by_user") or ()), "")) for place, it in critical)
    return _with_lowered(settings, report, {place: _lowered(it, why) for place, it, user in largest if user in ended})


def _without_old_evidence(
    report: Report, evidence: Mapping[int, Evidence], memory: NodeMemory, settings: GateSettings
) -> tuple[Report, tuple[str, ...]]:
    """The report in which findings are warnings whose evidence is no newer than an operator's resume, and a line for
    each of them."""
    if memory.resumed_at is None:
        return report, ()
    why = f"seen before the resume of {utc_text(memory.resumed_at)}"
    places = [place for place, it in evidence.items() if is_from_before_resume(memory, it)]
    return _with_lowered(settings, report, {place: _lowered(report.findings[place], why) for place in places})


def _with_lowered(
    settings: GateSettings, report: Report, lowered: Mapping[int, Finding]
) -> tuple[Report, tuple[str, ...]]:
    lines = tuple(f"gate: {finding_name(it)} was {it.evidence['lowered']}: a warning" for it in lowered.values())
    return with_lowered(report, lowered, settings.subject.profile.warnings_fail), lines


def _lowered(finding: Finding, why: str) -> Finding:
    evidence = {**finding.evidence, "lowered": why}
    return structs.replace(finding, severity=Severity.WARNING, evidence=evidence)


def _stays_drained(slurm: Slurm) -> str:
    """Of a health check: the node, where laggard has drained it before, which no cap takes back; else empty."""
    try:
        node = slurm.show()
    except SlurmError:
        return ""
    is_ours = node.is_drained and node.has_laggards_reason
    return f"{slurm.node} stays drained: {node.reason}" if is_ours else ""


def _drain(settings: GateSettings, report: Report, seen: Seen) -> tuple[str, ...]:
    """Drains the node, and remembers for which evidence: after the drain, so that a gate which reads that the node is
    drained finds it so."""
    if seen.node is None:
        return (f"slurm: not drained: {seen.error}",)
    reason = headline(report, longest=REASON_LENGTH)
    try:
        done = settings.slurm_node(report.node).drain(seen.node, reason)
    except SlurmError as error:
        return (f"slurm: not drained: {error}",)
    problem = seen.problem
    if done.endswith(DRAINED):
        evidence, unknown = critical_evidence(report.findings).values(), unknowns(report)
        _, problem = remember(settings, report.node, lambda memory: drained(memory, evidence, time.time(), unknown))
    return (f"slurm: {done}", *_memory_lines(problem))


def _resume(settings: GateSettings, node: str, seen: Seen | None) -> tuple[str, ...]:
    """Resumes the node where laggard drained it. `seen`: the node, where SLURM was asked for it."""
    seen = look(settings, node) if seen is None else seen
    if seen.node is None:
        return (f"slurm: not resumed: {seen.error}",)
    try:
        done = settings.slurm_node(node).resume(seen.node)
    except SlurmError as error:
        return (f"slurm: not resumed: {error}",)
    problem = seen.problem
    if RESUMED in done:
        _, problem = remember(settings, node, resumed_by_laggard)
    return (*((f"slurm: {done}",) if done else ()), *_memory_lines(problem))


def _notice_resume(settings: GateSettings, node: str) -> tuple[str, ...]:
    """Asks SLURM for a node that was drained when it was last looked at. So the next gates know that it was resumed,
    and take the agent's report again; no other gate that lets a job pass asks SLURM."""
    if remembered(settings, node).seen_drained_at is None:
        return ()
    seen = look(settings, node)
    if seen.node is None or seen.memory.seen_drained_at is not None:
        return ()
    return (f"slurm: {settings.slurm_node(node).node} {RESUMED_BY_HAND}",)


def _memory_lines(problem: str) -> tuple[str, ...]:
    return (f"gate: what was seen here cannot be kept, so a resume may be undone: {problem}",) if problem else ()


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
    from laggard.gate.self_check import CHECK_SECONDS, NO_COLLECTOR, SLURM_AWAY, gate_problems  # most runs need none

    problems = [NO_COLLECTOR]
    if settings.checks_setup:
        if settings.limit.to_decide(CHECK_SECONDS) < CHECK_SECONDS:
            return (f"{_NOT_CHECKED}: no time was left",)
        slurm = settings.slurm_node(node) if policy.drain or policy.resume else None
        problems = gate_problems(policy.collector, node, slurm, settings.limit)
    wrong = f"gate: {WRONG_SETUP}"
    return tuple(f"{_NOT_CHECKED if it.startswith(SLURM_AWAY) else wrong}: {it}" for it in problems)
