"""The end of a rank, from what the kernel reported, what the process noted itself, and the last that its file tells."""

from __future__ import annotations

import dataclasses
import os
import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from laggard.agent.ranks.kernel_word import (
    KernelWord,
    OomCounts,
    OomKills,
    confirmed_word,
    count_machines_oom_kills,
    read_messages,
    read_oom_kills,
)
from laggard.kit.processes import ExitStatus, of_wait_status, wait_status
from laggard.model import RankEnd
from laggard.probes.host.reader import NoReader, ask

__all__ = ["ExitStatus", "read_exit_status"]


def read_exit_status(pidfd: int, pid: int) -> ExitStatus | None:
    """The status of a process that has ended. None while the kernel does not tell."""
    status = wait_status(pidfd, pid)
    if status is None and os.geteuid() != 0:
        status = _status_by_reader(pid)
    return of_wait_status(status)


def _status_by_reader(pid: int) -> int | None:
    try:
        return int(ask(f"exit_status {pid}"))
    except (NoReader, ValueError):
        return None


# Watches the ranks' processes, so that the agent knows the moment at which one ends, its status and the kernel's word.
#
# One thread waits for all of them. It sleeps while none ends. A process is seen from the first time that anybody asks
# for the ranks; of one that ended before that nothing is known but its file.

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


_KERNEL_SECONDS: Final = 0.05
"""The delay with which the kernel's report of an end may come. Our own choice: the watching thread waits for its
turn."""
_MAX_CHARACTERS: Final = 64
_OF_LAUNCHERS: Final = ("SIGKILL", "SIGTERM")
"""The signals by which launchers end what runs still."""


class LastMoment(NamedTuple):
    """The last sign of life in the rank file: the writer ended at `at_seconds` (Unix time) or at most
    `uncertain_seconds` before. `unix_minus_clock` converts the file's clock to Unix time; `now_seconds` is now."""

    at_seconds: float
    uncertain_seconds: float
    unix_minus_clock: float
    now_seconds: float


class _Noted(NamedTuple):
    """The notes of the process itself, as far as they are sane: any user may have written it."""

    exit_code: int | None = None
    at_seconds: float | None = None
    exception: str = ""
    others_failed: bool = False


def rank_end(noted: Any, watched: WatchedExit | None, last: LastMoment) -> RankEnd:
    """`noted`: the fact ENDING, None where there is none. What the kernel reported comes first; the moment is the
    exception's where there was one, because the process takes a while to end after it."""
    own = _noted(noted, last)
    status = watched.status if watched and not _was_ended_after(own, watched) else None
    if own.at_seconds is not None:
        at, uncertain = own.at_seconds, 0.0
    elif watched:
        at, uncertain = watched.monotonic_seconds + last.unix_minus_clock, _KERNEL_SECONDS
    else:
        at, uncertain = last.at_seconds, last.uncertain_seconds
    return RankEnd(
        at_seconds=at,
        uncertain_seconds=uncertain,
        exit_code=status.code if status else own.exit_code,
        signal=status.signal if status else "",
        exception=own.exception,
        others_failed=own.others_failed,
        cause=watched.word.cause if watched and watched.word else "",
        kernel=watched.word.text if watched and watched.word else "",
    )


def _was_ended_after(own: _Noted, watched: WatchedExit) -> bool:
    """Whether the process had noted its end before a launcher killed it, as Ray does: the first is what ended it."""
    status = watched.status
    return own.at_seconds is not None and status is not None and status.signal in _OF_LAUNCHERS and not watched.word


def is_failure(end: RankEnd) -> bool:
    """Whether the process ended in another way than with status 0, as far as is known."""
    return bool(end.exit_code or end.signal or end.exception)


def is_harmless(end: RankEnd, noted: Any) -> bool:
    """Whether a rank that had left torch.distributed in order ended as launchers end it, as Ray does: killed, or with a
    status of the launcher's. `noted`: the fact ENDING, which an exception or sys.exit() leaves."""
    return noted is None and not end.exception and end.signal in ("", *_OF_LAUNCHERS) and not end.cause


def _noted(noted: Any, last: LastMoment) -> _Noted:
    if not isinstance(noted, dict):
        return _Noted()
    code, at, name = noted.get("exit_code"), noted.get("at_seconds"), noted.get("exception")
    unix = at + last.unix_minus_clock if isinstance(at, (int, float)) else None
    return _Noted(
        code if type(code) is int and 0 <= code <= 255 else None,
        unix if unix is not None and 0.0 <= unix <= last.now_seconds else None,
        name[:_MAX_CHARACTERS] if isinstance(name, str) else "",
        noted.get("others_failed") is True,
    )
