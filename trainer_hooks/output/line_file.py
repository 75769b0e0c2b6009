"""A file that grows by whole lines, in a process that may fork, be killed, or find its disk full or stuck."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Final

from laggard.trainer_hooks.record.periodic_thread import PeriodicThread

log = logging.getLogger("laggard")

MOST_BYTES: Final = 1 << 30
"""Of one rank's recording: a day of a thousand collectives a minute. What comes after is left out and counted."""

_MOST_WAITING: Final = 64 << 20  # bytes that wait for a disk that is slow or stuck


class LineFile:
    """Lines are kept until flush(), and written by a thread: whoever writes lines never waits for a disk. On a
    descriptor of its own, so that what a forked child inherits of it is nothing that could be written twice. The first
    write that fails is the last; from there on lines are counted as lost."""

    def __init__(self, path: str, most_bytes: int = MOST_BYTES) -> None:
        """Raises OSError; FileExistsError where the file is there already."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._path = path
        self._most = most_bytes
        self._size = 0  # with what waits
        self._written = 0
        self._lines: list[str] = []
        self._waiting: list[bytes] = []
        self._full = False
        self._told = 0
        self.lost = 0
        self._rounds = PeriodicThread(self._write_out)
        self._rounds.pause_around_forks()
        with contextlib.suppress(RuntimeError):  # no thread to be had: close() writes
            self._rounds.start()

    def write(self, line: str) -> None:
        self._lines.append(line)

    def flush(self) -> None:
        """Has written what was kept, or counts it as lost. Never raises."""
        lines, self._lines = self._lines, []
        data = "".join(f"{line}\n" for line in lines).encode()
        if not self._full and self._size + len(data) > self._most:
            self._give_up(f"it has {self._size} bytes, and may have {self._most}")
        if not self._full and sum(map(len, self._waiting)) + len(data) > _MOST_WAITING:
            self._give_up("its disk does not keep up")
        if self._full:
            self.lost += len(lines)
        else:
            self._size += len(data)
            self._waiting.append(data)

    def _write_out(self) -> None:
        while self._waiting:
            data = self._waiting[0]
            try:
                self._put(data)
                del self._waiting[0]
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._written)  # a line that is cut short is no line
                self._give_up(error.strerror or "it cannot be written")
                self.lost += sum(each.count(b"\n") for each in self._waiting)
                self._waiting.clear()

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._written += len(data)

    def _give_up(self, reason: str) -> None:
        self._full = True
        log.warning("laggard: the recording %s ends here, the training goes on: %s", self._path, reason)

    def news_of_loss(self) -> int:
        """How many lines were lost since the last time."""
        before, self._told = self._told, self.lost
        return self.lost - before

    def close(self) -> None:
        """Writes what is left. Where the disk is stuck it is left behind."""
        self.flush()
        if self._rounds.stop():
            self._write_out()
            os.close(self._fd)
