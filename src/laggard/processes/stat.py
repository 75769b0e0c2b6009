"""/proc/PID/stat, the one file on a process that the process itself cannot hold up. The only parser of it.

psutil takes four to five times as long (12 and 55 us a process, measured in turns), and reads the command line of a
process whose name has 15 characters: memory on a user's own file system can keep that read from ever returning.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

UNINTERRUPTIBLE: Final = "D"
"""The one state in which a process does not react to SIGKILL."""

_ENDED: Final = "ZX"
_EXITING: Final = 0x4  # PF_EXITING (include/linux/sched.h)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_FIELDS: Final = 50
"""The fields from the state on, in each Linux since 3.5."""


class Stat(NamedTuple):
    """`state`: R, S, D, T, t, I, Z or X (proc_pid_stat(5)). `cpu_seconds`: of its threads, in user and system mode.
    `start_ticks`: clock ticks after boot. `core`: where it last ran. `wait_status`: 0 also where nobody may know."""

    state: str
    session: int
    flags: int
    cpu_seconds: float
    start_ticks: int
    core: int
    wait_status: int

    @property
    def has_ended(self) -> bool:
        """Also true of a zombie, which nobody has reaped yet."""
        return self.state in _ENDED

    @property
    def is_exiting(self) -> bool:
        """Whether the kernel takes it down: its sockets may be closed already, and it is no zombie yet."""
        return bool(self.flags & _EXITING)

    @property
    def age_seconds(self) -> float:
        """Seconds since it started; time in suspend counts."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / _TICKS


def parse_stat(data: bytes) -> Stat:
    """Parses `PID (COMMAND) STATE ...`. The command may hold spaces and parentheses, so the fields are counted from
    the last parenthesis. Raises ValueError."""
    fields = data.rpartition(b")")[2].split()
    if len(fields) < _FIELDS or len(fields[0]) != 1:
        raise ValueError("no /proc/PID/stat")
    return Stat(
        fields[0].decode("ascii"),
        int(fields[3]),
        int(fields[6]),
        (int(fields[11]) + int(fields[12])) / _TICKS,
        int(fields[19]),
        int(fields[36]),
        int(fields[49]),
    )


def load_stat(pid: int | str, proc: str = "/proc") -> Stat:
    """The stat of a process, or of a thread as `PID/task/TID`. Raises OSError, ValueError."""
    with open(f"{proc}/{pid}/stat", "rb") as file:
        return parse_stat(file.read(4096))


def read_stat(pid: int | str, proc: str = "/proc") -> Stat | None:
    """The same; None if there is no such process, or it cannot be read."""
    try:
        return load_stat(pid, proc)
    except (OSError, ValueError):
        return None
