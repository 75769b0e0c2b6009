"""Processes of probes that survived SIGKILL: they are stuck in the kernel, and starting another would add to them.

They outlive the gate that started them, so they are remembered between runs, by number and start time: a number alone
may be somebody else's by then. Without a state directory only this process's own are known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from laggard import wire
from laggard.probes.errors import Unknown
from laggard.probes.host.progress import Doing
from laggard.probes.runner.reaper import is_gone
from laggard.probes.runner.state_file import read_state, replace_state

FILE_NAME: Final = "stuck.json"


class Stuck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`started`: its start time in clock ticks after boot; `doing`: what it said last that it does."""

    pid: int
    started: int
    doing: Doing | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    processes: dict[str, Stuck] = {}
    laggard_stuck: int = 1  # the version of this document


class StuckProcesses:
    """By the name of the probe, or of the group that ran together."""

    def __init__(self) -> None:
        self._known: dict[str, Stuck] = {}

    def recall(self) -> None:
        """Learn of those that other runs left behind."""
        with contextlib.suppress(Unknown, wire.WireError):
            data = read_state(FILE_NAME)
            self._known = {**(wire.decode(data, _File).processes if data else {}), **self._known}

    def of(self, name: str) -> Stuck | None:
        """The one that is still there."""
        stuck = self._known.get(name)
        if stuck is not None and _lives(stuck):
            return stuck
        self._known.pop(name, None)
        return None

    def add(self, new: Mapping[str, tuple[int, Doing | None]], keep: bool) -> None:
        """`new`: number and doing, by name. `keep`: for other runs too."""
        added = {name: Stuck(pid, started, doing) for name, (pid, doing) in new.items() if (started := _started(pid))}
        self._known.update(added)
        if added and keep:
            alive = {name: stuck for name, stuck in self._known.items() if _lives(stuck)}
            with contextlib.suppress(Unknown):
                replace_state(FILE_NAME, wire.encode(_File(alive)))


def _lives(stuck: Stuck) -> bool:
    is_gone(stuck.pid)  # reaps it where it is a child of ours
    return _started(stuck.pid) == stuck.started


def _started(pid: int) -> int:
    """Clock ticks after boot; 0 for a process that has ended, reaped or not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])  # proc_pid_stat(5)
    except (OSError, ValueError, IndexError):
        return 0
