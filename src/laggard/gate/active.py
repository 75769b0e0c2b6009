"""The second part of the gate, on request: the probes that load the GPUs. They run after the others."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.gate.time_limit import TimeLimit
from laggard.model import Report
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.profiles import Profile, is_active
from laggard.probes.runner.report import merge_reports
from laggard.probes.runner.runner import run


def passive_probes(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    """Those of `probes` that load nothing."""
    return tuple(probe for probe in probes if not is_active(probe))


def run_active_probes(
    report: Report, host: Host, probes: Sequence[Probe], profile: Profile, limit: TimeLimit
) -> Report:
    """`report` with the results of the active ones of `probes`, which run here, for the profile's time at most."""
    active = tuple(probe for probe in probes if is_active(probe))
    if not active:
        return report
    seconds = limit.to_measure(profile.active_deadline_seconds)
    return merge_reports(report, run(host, active, deadline_seconds=seconds, warnings_fail=profile.warnings_fail))
