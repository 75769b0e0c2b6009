"""The gate's second part, when asked for: the probes that load the GPUs, after those that only look."""

from __future__ import annotations

import time
from collections.abc import Sequence

from laggard.model import Report
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.profiles import ACTIVE_NAMES, Profile
from laggard.probes.runner.report import merge_reports
from laggard.probes.runner.runner import run

LEAST_SECONDS = 0.1


def passive(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    return tuple(probe for probe in probes if probe.name not in ACTIVE_NAMES)


def with_active(report: Report, host: Host, probes: Sequence[Probe], profile: Profile, until: float | None) -> Report:
    """`report` with what the active ones of `probes` say. `until`: the monotonic time at which all must be answered."""
    chosen = tuple(probe for probe in probes if probe.name in ACTIVE_NAMES)
    if not chosen:
        return report
    left = profile.active_deadline_seconds if until is None else max(LEAST_SECONDS, until - time.monotonic())
    active = run(host, chosen, deadline_seconds=left, warnings_fail=profile.warnings_fail)
    return merge_reports(report, active)
