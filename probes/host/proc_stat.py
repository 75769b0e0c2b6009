"""/proc/PID/stat of this machine: the state of a process, and when it started."""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

ENDED: Final = frozenset("ZX")
UNINTERRUPTIBLE: Final = "D"
"""The one state in which a process does not react to SIGKILL."""


class ProcStat(NamedTuple):
    """`state` is one letter: R, S, D, T, t, I, Z or X (proc_pid_stat(5)). `start_ticks`: clock ticks after boot."""

    state: str
    start_ticks: int

    @property
    def has_ended(self) -> bool:
        """Also true of a zombie, which nobody has reaped yet."""
        return self.state in ENDED

    @property
    def age_seconds(self) -> float:
        """Seconds since the process started; time in suspend counts."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / os.sysconf("SC_CLK_TCK")


def parse_proc_stat(data: bytes) -> ProcStat:
    """Parses `PID (COMMAND) STATE ...`. The command may hold spaces and parentheses, so the fields are counted from
    the last parenthesis: state is field 3, starttime field 22. Raises ValueError."""
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 20 or len(fields[0]) != 1:
        raise ValueError("no /proc/PID/stat")
    return ProcStat(fields[0].decode("ascii"), int(fields[19]))


def read_proc_stat(pid: int) -> ProcStat | None:
    """The stat of process `pid`; None where there is no such process, or it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_proc_stat(file.read())
    except (OSError, ValueError):
        return None
