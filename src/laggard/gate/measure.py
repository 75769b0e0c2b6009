"""The gate's report on this node: of the agent, or of the probes that run here; of the job's nodes, which measure one
another; and last of the probes that load the GPUs.

The agent's report is good for letting a job pass, and for nothing else: it may be older than the repair. The probes
that are critical in it run here once more, and only what they find now counts.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

import msgspec

from laggard.gate.settings import GateSettings
from laggard.kit.environment import ENV_GATE_JOBS
from laggard.model import Report, Severity, Verdict
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.profiles import Profile
from laggard.probes.runner.report import drop_findings, finding_name, for_job, merge_reports, parse_gpus, replace_probes
from laggard.probes.runner.runner import run

__all__ = ["for_job", "job_gpus", "parse_gpus"]

_VARIABLE: Final = "SLURM_JOB_GPUS"


def job_gpus(asked: frozenset[int] | None, host: Host) -> frozenset[int] | None:
    """The device minors of the job's GPUs: those that were asked for, else those that SLURM gave the job; None where
    all GPUs are to be judged."""
    if asked is not None:
        return asked
    try:
        return parse_gpus(host.environ().get(_VARIABLE, ""))
    except Unknown:
        return None


_AGE_ROUNDING_SECONDS: Final = 1.0
"""An agent tells the age of its report in whole seconds."""


class Measured(NamedTuple):
    """A report, and the age of the agent's report in it, in seconds; None where the gate ran the probes. `over`: what
    was critical in the agent's report and is not now, a line each."""

    report: Report
    age: float | None = None
    over: tuple[str, ...] = ()


def measure(settings: GateSettings) -> Measured:
    """The report that the gate decides on, within the time limit."""
    subject = settings.subject
    cached = _agents_report(settings)
    if cached is None:
        cached = Measured(_run(settings, subject.probes, subject.profile.deadline_seconds))
    else:
        cached = _confirmed(settings, cached)
    report, age, over = cached
    report = _with_last_jobs(settings, report)
    if settings.gang is not None:
        from laggard.gate.gang import run_gang  # few gates have one

        report = run_gang(report, settings.gang, settings.limit, more_follows=bool(subject.active_probes))
    if subject.active_probes:
        active = _run(settings, subject.active_probes, subject.profile.active_deadline_seconds)
        report = merge_reports(report, active)
    report = for_job(report, job_gpus(subject.gpus, subject.host), subject.profile.warnings_fail)
    return Measured(_judge_unknown(report, subject.profile), age, over)


def _with_last_jobs(settings: GateSettings, report: Report) -> Report:
    """The report with the probe `jobs` as it is now, of this machine: the last job may have ended a second ago."""
    probes = tuple(probe for probe in settings.subject.probes if probe.name == "jobs")
    if not probes or ENV_GATE_JOBS not in os.environ:
        return report
    fresh = run(
        Host(),
        probes,
        deadline_seconds=settings.limit.to_measure(probes[0].deadline_seconds),
        warnings_fail=settings.subject.profile.warnings_fail,
    )
    return replace_probes(report, fresh)


def _confirmed(settings: GateSettings, cached: Measured) -> Measured:
    """The agent's report with the probes anew that are critical in it. A critical finding of a probe that this gate
    does not have, as of a newer agent, cannot be confirmed, and counts for nothing."""
    subject, report = settings.subject, cached.report
    critical = {place for place, it in enumerate(report.findings) if it.severity is Severity.CRITICAL}
    names = {result.name for result in report.probes if not critical.isdisjoint(result.findings)}
    if not names:
        return cached
    probes = tuple(probe for probe in subject.probes if probe.name in names)
    known = {probe.name for probe in probes}
    strangers = {place for it in report.probes if it.name in names - known for place in it.findings} & critical
    rest = drop_findings(report, strangers, subject.profile.warnings_fail)
    if probes:
        fresh = _run(settings, probes, subject.profile.deadline_seconds)
        rest = replace_probes(rest, fresh)
    now = {(it.code, it.device) for it in rest.findings if it.severity is Severity.CRITICAL}
    gone = [it for place in sorted(critical) if ((it := report.findings[place]).code, it.device) not in now]
    over = tuple(f"{finding_name(it)} of the agent's report of {cached.age:.0f} s ago is not found now" for it in gone)
    return Measured(rest, cached.age, over)


def _agents_report(settings: GateSettings) -> Measured | None:
    """The agent's last report, where it is one of all the gate's probes, fresh, and from after the last change of the
    node's state in SLURM, as far as the gate knows of one."""
    subject = settings.subject
    if subject.agent_port is None:
        return None
    from laggard.gate.cached_report import fetch_cached_report  # sockets are slow to import
    from laggard.kit.http_client import NoResponse

    try:
        names = [probe.name for probe in subject.probes]
        seconds = subject.profile.agent_seconds
        cached = fetch_cached_report(subject.agent_port, subject.host.node(), seconds, names)
    except NoResponse:
        return None
    if _is_void(settings, cached.report.node, cached.age_seconds):
        return None
    return Measured(cached.report, cached.age_seconds)


def _is_void(settings: GateSettings, node: str, age: float) -> bool:
    """Whether the node was resumed, or may have been, since a report of this age was made."""
    if not settings.slurm.may_act:
        return False
    from laggard.gate.memory import remembered

    made_at = time.time() - age - _AGE_ROUNDING_SECONDS
    return remembered(settings, node).is_older_than_change(made_at)


def _run(settings: GateSettings, probes: tuple[Probe, ...], most_seconds: float) -> Report:
    subject, seconds = settings.subject, settings.limit.to_measure(most_seconds)
    return run(subject.host, probes, deadline_seconds=seconds, warnings_fail=subject.profile.warnings_fail)


def _judge_unknown(report: Report, profile: Profile) -> Report:
    """`report` failed, where the profile fails what is unknown."""
    is_unknown = report.verdict in (Verdict.UNKNOWN, Verdict.SKIPPED)
    if is_unknown and profile.unknown == "fail":
        return msgspec.structs.replace(report, verdict=Verdict.FAIL)
    return report
