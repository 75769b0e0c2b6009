"""Every probe, one line each."""

from __future__ import annotations

from laggard.probes.clock import ClockThresholds, look_at_clock
from laggard.probes.disks import DiskThresholds, look_at_disks
from laggard.probes.limits import LimitThresholds, look_at_limits
from laggard.probes.shape import Probe

PROBES: tuple[Probe, ...] = (
    Probe("limits", look_at_limits, LimitThresholds()),
    Probe("clock", look_at_clock, ClockThresholds()),
    Probe("disks", look_at_disks, DiskThresholds()),
)
