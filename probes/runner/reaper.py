"""Ending the processes of probes. Nothing here waits for one that does not die."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import Final

_GRACE_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 0.001


def end(pid: int) -> None:
    """SIGKILL to the process and to whatever it started (its process group)."""
    for kill in (os.killpg, os.kill):  # the group does not exist until the child has run its first lines
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def bury(pids: Iterable[int]) -> list[int]:
    """Reap the killed within a small grace. Returns those that are stuck in the kernel; others that are still there
    die as soon as a busy machine lets them run."""
    until = time.monotonic() + _GRACE_SECONDS
    left = [pid for pid in pids if not is_gone(pid)]
    while left and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        left = [pid for pid in left if not is_gone(pid)]
    return [pid for pid in left if _sleeps_uninterruptibly(pid)]


def _sleeps_uninterruptibly(pid: int) -> bool:
    """The one state in which a process does not heed SIGKILL: D (proc_pid_stat(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"D"
    except (OSError, IndexError):
        return False


def cause_of_death(pid: int) -> str:
    """What became of the process, which has closed its end of the pipe. Does not reap it: its process group is still
    to be ended, and a reaped number may already be somebody else's."""
    until = time.monotonic() + _GRACE_SECONDS
    death = _peek(pid)
    while death is None and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        death = _peek(pid)
    return death or "it closed its pipe and lives on"


def _peek(pid: int) -> str | None:
    try:
        death = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "it ended"
    if death is None:
        return None
    if death.si_code == os.CLD_EXITED:
        return f"it ended with exit status {death.si_status}"
    return f"killed by {_signal_name(death.si_status)}"


def is_gone(pid: int) -> bool:
    """Reaps it if it is. A process that somebody else reaped is gone too."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
