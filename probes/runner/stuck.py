"""Remembers the processes of probes that survived SIGKILL: they are stuck in the kernel, and to start another one would
only add to them.

They outlive the gate that started them, so they are saved between runs, by process number and start time: by then the
number alone may be another process's. Without a state directory only this process's own children are known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from laggard import wire
from laggard.probes.errors import Unknown
from laggard.probes.host.watchdog import AnnouncedCall
from laggard.probes.runner.reaper import reap_if_ended
from laggard.probes.runner.state_file import read_state, replace_state
from laggard.processes.stat import read_stat

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
