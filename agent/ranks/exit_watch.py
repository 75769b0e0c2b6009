"""Watches the ranks' processes, so that the agent knows the moment at which one ends, its status and the kernel's word.

One thread waits for all of them. It sleeps while none ends. A process is seen from the first time that anybody asks for
the ranks; of one that ended before that nothing is known but its file.
"""

from __future__ import annotations

import dataclasses
import os
import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from laggard.agent.ranks.exit_status import ExitStatus, read_exit_status
from laggard.agent.ranks.kernel_word import KernelWord, OomCounts, confirmed_word, read_messages
from laggard.agent.ranks.oom_kills import OomKills, count_machines_oom_kills, read_oom_kills

_STATUS_SECONDS: Final = 60.0
_STATUS_PAUSE_SECONDS: Final = 0.2
"""The time between two questions for a status that a process has only once its parent has waited for it; the questions
end after _STATUS_SECONDS."""


@dataclasses.dataclass
class WatchedExit:
    """The end of one process: when the kernel reported it (CLOCK_MONOTONIC), and what is known of it by now."""

    monotonic_seconds: float
    status: ExitStatus | None = None
    word: KernelWord | None = None


@dataclasses.dataclass(frozen=True)
class _Watched:
    name: str
    pid: int
    oom_kills: dict[str, int]
    machines_oom_kills: int | None


@dataclasses.dataclass(frozen=True)
class _Ended:
    pidfd: int
    watched: _Watched
    exit: WatchedExit
    monotonic: float
    oom_kill: str  # what its cgroup's count says for a kill of this process
    machines_oom_kills: int | None


class ExitWatch:
    """Watches processes by a name each. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}  # by pidfd
        self._exits: dict[str, WatchedExit] = {}
        self._oom_kills = OomKills()
        self._thread: threading.Thread | None = None

    def watch(self, name: str, pid: int, is_still_it: Callable[[], bool]) -> None:
        """Watches the process `pid`, unless it is watched already. `is_still_it` is asked once the process is held: the
        pid may be another's by then. Where the kernel does not let us, nothing is watched."""
        with self._lock:
            if name in self._exits or any(each.name == name for each in self._watched.values()):
                return
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:  # gone, or no more descriptors
                return
            if not is_still_it():
                os.close(pidfd)
                return
            self._watched[pidfd] = _Watched(name, pid, read_oom_kills(pid), count_machines_oom_kills())
            self._epoll.register(pidfd, select.EPOLLIN)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="exit watch", daemon=True)
                self._thread.start()

    def exit_of(self, name: str) -> WatchedExit | None:
        """The end of that process; None where it runs, or was not watched."""
        with self._lock:
            return self._exits.get(name)

    def keep(self, names: Collection[str]) -> None:
        """Forgets all others."""
        with self._lock:
            self._exits = {name: found for name, found in self._exits.items() if name in names}
            for pidfd in [fd for fd, each in self._watched.items() if each.name not in names]:
                del self._watched[pidfd]
                self._epoll.unregister(pidfd)
                os.close(pidfd)
            self._oom_kills.keep({path for each in self._watched.values() for path in each.oom_kills})

    def _run(self) -> None:
        ended: list[_Ended] = []  # whose status is not known yet
        while True:
            events = self._epoll.poll(_STATUS_PAUSE_SECONDS if ended else None)
            ended += [found for pidfd, _ in events if (found := self._note_end(pidfd)) is not None]
            ended = [each for each in ended if not self._note_status(each)]

    def _note_end(self, pidfd: int) -> _Ended | None:
        at = time.monotonic()
        with self._lock:
            watched = self._watched.pop(pidfd, None)
            if watched is None:
                return None
            self._epoll.unregister(pidfd)
            found = self._exits[watched.name] = WatchedExit(at)
        # At once, and in the order of the ends: a status may come much later than that of the next that ends.
        by_cgroup = self._oom_kills.ended(watched.oom_kills, at)
        return _Ended(pidfd, watched, found, at, by_cgroup, count_machines_oom_kills())

    def _note_status(self, ended: _Ended) -> bool:
        """Asks for the status. True where it is known, or will not be."""
        status = read_exit_status(ended.pidfd, ended.watched.pid)
        if status is None and time.monotonic() - ended.monotonic < _STATUS_SECONDS:
            return False
        ended.exit.status, ended.exit.word = status, _word(ended, status)
        os.close(ended.pidfd)
        return True


def _word(ended: _Ended, status: ExitStatus | None) -> KernelWord | None:
    """The reason why the kernel ended the process."""
    if status is not None and (status.code == 0 or status.signal == "SIGTERM"):
        return None
    counts = OomCounts(ended.oom_kill, ended.watched.machines_oom_kills, ended.machines_oom_kills)
    signal = "SIGKILL" if status is None else status.signal
    return confirmed_word(read_messages(), ended.watched.pid, ended.monotonic, counts, killed=signal == "SIGKILL")
