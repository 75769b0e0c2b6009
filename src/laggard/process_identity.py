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

RUNS, STOPPED, GONE = "runs", "stopped", "gone"

_FLAGS_FIELD, _START_FIELD = 6, 19  # of /proc/PID/stat, behind the name in parentheses; the first there is the state
_EXITING = 0x4  # PF_EXITING: its sockets may be closed already, and it is no zombie yet
_STOPPED_STATES = "Tt"
_ENDED_STATES = "ZX"


def own_identity() -> dict[str, Any]:
    """This process, for JSON: pid, start_ticks, boot_id, pid_namespace. Empty where /proc does not tell. Never
    raises."""
    try:
        return {"pid": os.getpid(), "start_ticks": _state_and_start(os.getpid())[1], **_place()}
    except (OSError, ValueError, IndexError):
        return {}


def own_start() -> float | None:
    """The time at which this process began, in Unix time; None where /proc does not tell."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read(64).split()[0])
        age = up - _state_and_start(os.getpid())[1] / os.sysconf("SC_CLK_TCK")
        return time.time() - max(age, 0.0)
    except (OSError, ValueError, IndexError):
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
        state, began = _state_and_start(pid)
    except FileNotFoundError:
        return GONE if os.path.exists("/proc/self/stat") else None
    except (OSError, ValueError, IndexError, OverflowError):
        return None
    if began != start or state in _ENDED_STATES:
        return GONE
    return STOPPED if state in _STOPPED_STATES else RUNS


def _place() -> dict[str, str]:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return {"boot_id": file.read(64).strip(), "pid_namespace": os.readlink("/proc/self/ns/pid")}


def _state_and_start(pid: int) -> tuple[str, int]:
    """The state's letter, X of a process that the kernel is taking down, and the start in clock ticks since boot.
    Raises OSError, ValueError, IndexError."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read(4096).rpartition(")")[2].split()
    exiting = int(fields[_FLAGS_FIELD]) & _EXITING
    return "X" if exiting else fields[0], int(fields[_START_FIELD])
