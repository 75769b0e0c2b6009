"""The time since boot: what a machine is, and what it is not yet."""

from __future__ import annotations

import math

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host


def read_uptime(host: Host) -> float:
    """The seconds since boot. Raises Unknown."""
    try:
        seconds = float(host.read("/proc/uptime").split()[0])
    except (IndexError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise Unknown("/proc/uptime holds no number of seconds")
    return seconds


def has_just_booted(host: Host, grace_seconds: float) -> bool:
    """Whether less than `grace_seconds` have passed since boot; False where that is not known."""
    try:
        return read_uptime(host) < grace_seconds
    except Unknown:
        return False
