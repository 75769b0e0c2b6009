"""The time since boot: what a machine is, and what it is not yet."""

from __future__ import annotations

import math
from typing import Final

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host

_LOG_SECONDS: Final = 60.0
"""The time by which the log may begin late: nothing of a driver comes in the first minute, and its clock differs."""


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


def require_log(host: Host, log: str, since: float, uptime: float) -> None:
    """Raises Unknown where records of the kernel's log from after `since`, in seconds after boot, were overwritten and
    nobody saw them: a flood of lines, which any user can cause, hides what came before."""
    begins = host.kernel_log_since(log)
    if begins is not None and begins > max(since, 0.0) + _LOG_SECONDS:
        wanted = uptime - max(since, 0.0)
        raise Unknown(
            f"the kernel's log reaches back {(uptime - begins) / 3600:.1f} h of {wanted / 3600:.1f} h: what came before"
            " was overwritten, and no agent saw it (log_buf_len= of the kernel makes its buffer larger)"
        )
