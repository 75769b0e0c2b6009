"""What a probe's process is doing, told to the process that waits for it through a page of shared memory.

A call into a driver that never returns cannot be asked how it is. So the child says before each one what it does and
how long that may take; the parent reads it, whatever became of the child.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final, NamedTuple

from laggard.probes.nvml.model import Hang

_HEADER: Final = struct.Struct("=ddI")  # since (monotonic seconds), patience (seconds), bytes of text
_SIZE: Final = mmap.PAGESIZE


class Doing(NamedTuple):
    text: str
    since: float  # time.monotonic()
    patience_seconds: float

    @property
    def due(self) -> float:
        """When it has taken longer than it ever should."""
        return self.since + self.patience_seconds


class Progress:
    """Made before the fork; the child says, the parent asks."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE)

    def say(self, text: str, patience_seconds: float) -> None:
        data = text.encode()[: _SIZE - _HEADER.size]
        self._page[: _HEADER.size + len(data)] = _HEADER.pack(time.monotonic(), patience_seconds, len(data)) + data

    def ask(self) -> Doing | None:
        """None: nothing was said yet."""
        since, patience, length = _HEADER.unpack_from(self._page)
        if not since:
            return None
        text = self._page[_HEADER.size : _HEADER.size + min(length, _SIZE - _HEADER.size)].decode(errors="replace")
        return Doing(text, since, patience)

    def close(self) -> None:
        self._page.close()


def examine(pid: int, doing: Doing) -> Hang:
    """How the kernel shows the process. The files are the live machine's: the process is one of ours. None of them
    needs the process's memory, whose lock a stuck one may hold; the stack needs root."""
    return Hang(
        call=doing.text,
        seconds=round(time.monotonic() - doing.since, 1),
        limit_seconds=doing.patience_seconds,
        pid=pid,
        state=_state(_read(f"/proc/{pid}/stat")),
        wchan=_read(f"/proc/{pid}/wchan").strip(),
        stack=tuple(line.split(" ", 1)[-1] for line in _read(f"/proc/{pid}/stack").splitlines()[:12]),
    )


def _state(stat: str) -> str:
    words = stat.rpartition(")")[2].split()
    return words[0] if words else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
