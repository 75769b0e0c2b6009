"""The gate's report on this node: of the agent, or of the probes that run here; of the job's nodes, which measure one
another; and last of the probes that load the GPUs."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from laggard.gate.job_gpus import for_job, job_gpus
from laggard.gate.settings import GateSettings
from laggard.model import Report, Verdict
from laggard.probes.probe import Probe
from laggard.probes.profiles import Profile
from laggard.probes.runner.report import merge_reports
from laggard.probes.runner.runner import run


class Measured(NamedTuple):
    """A report, and the age of the agent's report in it, in seconds; None where the gate ran the probes."""

    report: Report
    age: float | None = None


def measure(settings: GateSettings) -> Measured:
    """The report that the gate decides on, within the time limit."""
    subject = settings.subject
    report, age = _agents_report(settings) or Measured(_run(settings, subject.probes, subject.profile.deadline_seconds))
    if settings.gang is not None:
        from laggard.gate.gang import run_gang  # few gates have one

        report = run_gang(report, settings.gang, settings.limit, more_follows=bool(subject.active_probes))
    if subject.active_probes:
        active = _run(settings, subject.active_probes, subject.profile.active_deadline_seconds)
        report = merge_reports(report, active)
    report = for_job(report, job_gpus(subject.gpus, subject.host), subject.profile.warnings_fail)
    return Measured(_judge_unknown(report, subject.profile), age)


def _agents_report(settings: GateSettings) -> Measured | None:
    """The agent's last report, where it is one of all the gate's probes, and fresh."""
    subject = settings.subject
    if subject.agent_port is None:
        return None
    from laggard.gate.cached_report import fetch_cached_report  # sockets are slow to import
    from laggard.http.client import NoResponse

    try:
        names = [probe.name for probe in subject.probes]
        seconds = subject.profile.agent_seconds
        cached = fetch_cached_report(subject.agent_port, subject.host.node(), seconds, names)
    except NoResponse:
        return None
    return Measured(cached.report, cached.age_seconds)


def _run(settings: GateSettings, probes: tuple[Probe, ...], most_seconds: float) -> Report:
    subject, seconds = settings.subject, settings.limit.to_measure(most_seconds)
    return run(subject.host, probes, deadline_seconds=seconds, warnings_fail=subject.profile.warnings_fail)


def _judge_unknown(report: Report, profile: Profile) -> Report:
    """`report` failed, where the profile fails what is unknown."""
    is_unknown = report.verdict in (Verdict.UNKNOWN, Verdict.SKIPPED)
    if is_unknown and profile.unknown == "fail":
        return msgspec.structs.replace(report, verdict=Verdict.FAIL)
    return report
