"""The identity of the process that wrote a file, so that a later reader can ask whether it still runs. Standard library
only.

A process number alone is used again and again. With the boot, the PID namespace and the moment of its start a number is
one process's; on another machine, or in another container, nothing can be said of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from laggard.processes.stat import load_stat

RUNS, STOPPED, GONE = "runs", "stopped", "gone"

_STOPPED_STATES = "Tt"


def own_identity() -> dict[str, Any]:
    """This process, for JSON: pid, start_ticks, boot_id, pid_namespace. Empty where /proc does not tell. Never
    raises."""
    try:
        return {"pid": os.getpid(), "start_ticks": load_stat(os.getpid()).start_ticks, **_place()}
    except (OSError, ValueError):
        return {}


def own_start() -> float | None:
    """The time at which this process began, in Unix time; None where /proc does not tell."""
    try:
        return time.time() - max(load_stat(os.getpid()).age_seconds, 0.0)
    except (OSError, ValueError):
        return None


def state_of(process: Mapping[str, Any] | None) -> str | None:
    """RUNS, STOPPED (by a signal or a debugger) or GONE; None where this machine cannot tell. `process`: what
    own_identity() gave, from a file that need not be trusted."""
    pid, start = (process or {}).get("pid"), (process or {}).get("start_ticks")
    if not process or not (isinstance(pid, int) and isinstance(start, int) and pid > 0):
        return None
    try:
        place = _place()
        if any(process.get(name) != value for name, value in place.items()):
            return None
        stat = load_stat(pid)
    except FileNotFoundError:
        return GONE if os.path.exists("/proc/self/stat") else None
    except (OSError, ValueError, OverflowError):
        return None
    if stat.start_ticks != start or stat.has_ended or stat.is_exiting:
        return GONE
    return STOPPED if stat.state in _STOPPED_STATES else RUNS


def _place() -> dict[str, str]:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return {"boot_id": file.read(64).strip(), "pid_namespace": os.readlink("/proc/self/ns/pid")}
