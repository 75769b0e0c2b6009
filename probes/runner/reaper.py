"""Kills and reaps the processes of probes. Nothing here waits for a process that does not die."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import Final

from laggard.processes.stat import UNINTERRUPTIBLE, read_stat

_GRACE_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 0.001


def kill_group(pid: int) -> None:
    """Sends SIGKILL to the process and to everything that it started (its process group)."""
    for kill in (os.killpg, os.kill):  # the group does not exist until the child has run its first lines
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def reap(pids: Iterable[int]) -> list[int]:
    """Reaps killed children within 50 ms. Returns those that are stuck in the kernel; others that are still there die
    as soon as a busy machine lets them run."""
    deadline = time.monotonic() + _GRACE_SECONDS
    left = [pid for pid in pids if not reap_if_ended(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = [pid for pid in left if not reap_if_ended(pid)]
    return [pid for pid in left if _is_uninterruptible(pid)]


def reap_if_ended(pid: int) -> bool:
    """Reaps the child `pid` if it has ended. Returns whether it is gone, also where it is no child of this process or
    was reaped elsewhere."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def exit_reason(pid: int) -> str:
    """The end of the child `pid`, which has closed its end of the pipe. Does not reap it: its process group has still
    to be killed, and the number of a reaped process may already be somebody else's."""
    deadline = time.monotonic() + _GRACE_SECONDS
    reason = _peek_exit(pid)
    while reason is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        reason = _peek_exit(pid)
    return reason or "it closed its pipe and is still running"


def _is_uninterruptible(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state == UNINTERRUPTIBLE


def _peek_exit(pid: int) -> str | None:
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "it ended"
    if status is None:
        return None
    if status.si_code == os.CLD_EXITED:
        return f"it ended with exit status {status.si_status}"
    return f"killed by {_signal_name(status.si_status)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
