"""Remembers the processes of probes that survived SIGKILL: they are stuck in the kernel, and to start another one would
only add to them.

They outlive the gate that started them, so they are saved between runs, by process number and start time: by then the
number alone may be another process's. Without a state directory only this process's own children are known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from laggard import wire
from laggard.kit.processes import UNINTERRUPTIBLE, read_stat
from laggard.probes.errors import Unknown
from laggard.probes.host.watchdog import AnnouncedCall
from laggard.probes.runner.state_file import read_state, replace_state

# Kills and reaps the processes of probes. Nothing here waits for a process that does not die.

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


FILE_NAME: Final = "stuck.json"


class StuckProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`start_ticks`: its start in clock ticks after boot; `call`: the call that it announced last."""

    pid: int
    start_ticks: int = msgspec.field(name="started")
    call: AnnouncedCall | None = msgspec.field(name="doing", default=None)


class _StuckFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    processes: dict[str, StuckProcess] = {}
    laggard_stuck: int = 1  # the version of this document


class StuckProcesses:
    """The stuck processes by the name of their probe, or of their group of probes."""

    def __init__(self) -> None:
        self._known: dict[str, StuckProcess] = {}

    def load(self) -> None:
        """Adds those that earlier runs left behind. An unreadable file counts as none."""
        with contextlib.suppress(Unknown, wire.WireError):
            data = read_state(FILE_NAME)
            self._known = {**(wire.decode(data, _StuckFile).processes if data else {}), **self._known}

    def find(self, name: str) -> StuckProcess | None:
        """The process of `name` that is still there, if any."""
        stuck = self._known.get(name)
        if stuck is not None and _is_alive(stuck):
            return stuck
        self._known.pop(name, None)
        return None

    def add(self, new: Mapping[str, tuple[int, AnnouncedCall | None]], save: bool) -> None:
        """Adds processes, by name: number and announced call. `save`: also for later runs."""
        added = {
            name: StuckProcess(pid, start_ticks, call)
            for name, (pid, call) in new.items()
            if (start_ticks := _start_ticks(pid))
        }
        self._known.update(added)
        if added and save:
            alive = {name: stuck for name, stuck in self._known.items() if _is_alive(stuck)}
            with contextlib.suppress(Unknown):
                replace_state(FILE_NAME, wire.encode(_StuckFile(alive)))


def _is_alive(stuck: StuckProcess) -> bool:
    reap_if_ended(stuck.pid)
    return _start_ticks(stuck.pid) == stuck.start_ticks


def _start_ticks(pid: int) -> int:
    """Clock ticks after boot; 0 for a process that has ended, reaped or not."""
    stat = read_stat(pid)
    return 0 if stat is None or stat.has_ended else stat.start_ticks
