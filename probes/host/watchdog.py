"""Tells a call into a driver, or another step, that hangs from one that is slow.

Such a call may never return, and then its process cannot be asked how it is. So the probe's process announces each
call, and how long the call may take, in a page of shared memory; its parent reads the page, whatever became of the
process.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final, NamedTuple

from laggard.kit.processes import read_stat
from laggard.probes.nvml.model import Hang

_HEADER: Final = struct.Struct("=ddI")  # start (monotonic seconds), limit (seconds), bytes of text
_SIZE: Final = mmap.PAGESIZE
_STACK_LINES: Final = 12


class AnnouncedCall(NamedTuple):
    """A call that a process is in. `started` is the value of time.monotonic() at its start."""

    text: str
    started: float
    limit_seconds: float

    @property
    def deadline(self) -> float:
        """The value of time.monotonic() from which on the call hangs."""
        return self.started + self.limit_seconds


class Watchdog:
    """The shared page. It is made before the fork; the child announces calls, the parent reads the current one."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE)

    def announce(self, text: str, limit_seconds: float) -> None:
        """Announces the next call, in place of the one before it."""
        data = text.encode()[: _SIZE - _HEADER.size]
        self._page[: _HEADER.size + len(data)] = _HEADER.pack(time.monotonic(), limit_seconds, len(data)) + data

    def current_call(self) -> AnnouncedCall | None:
        """The call that was announced last; None before the first."""
        started, limit, length = _HEADER.unpack_from(self._page)
        if not started:
            return None
        text = self._page[_HEADER.size : _HEADER.size + min(length, _SIZE - _HEADER.size)].decode(errors="replace")
        return AnnouncedCall(text, started, limit)


def inspect_hang(pid: int, call: AnnouncedCall) -> Hang:
    """The state, as the kernel shows it, of process `pid`, which hangs in `call`. The process is laggard's own, so the
    files are the live machine's. None of them needs the process's memory, whose lock a stuck process may hold; the
    stack is readable by root alone."""
    stat = read_stat(pid)
    return Hang(
        call=call.text,
        seconds=round(time.monotonic() - call.started, 1),
        limit_seconds=call.limit_seconds,
        pid=pid,
        state=stat.state if stat else "",
        wchan=_read(f"/proc/{pid}/wchan").strip(),
        stack=tuple(line.split(" ", 1)[-1] for line in _read(f"/proc/{pid}/stack").splitlines()[:_STACK_LINES]),
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
