"""A file that grows by whole lines, in a process that may fork, be killed, or find its disk full or stuck."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Final

from laggard.trainer_hooks.record.periodic_thread import PeriodicThread

log = logging.getLogger("laggard")

MAX_BYTES: Final = 1 << 30
"""The most bytes of one rank's recording: a day of a thousand collectives a minute. Later lines are counted as lost."""

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MAX_QUEUED_BYTES: Final = 64 << 20  # bytes, while the disk is slow or stuck


class LineFile:
    """Keeps lines until flush(), and writes them on a thread of its own: the caller never waits for a disk. Nothing is
    buffered in a file object, so a forked child inherits nothing that could be written twice. After the first write
    that fails nothing more is written, and lines are counted as lost in `lost`."""

    def __init__(self, path: str, head: str = "", max_bytes: int = MAX_BYTES) -> None:
        """Creates the file with `head`, its first line: whatever becomes of the process, and whenever another looks, it
        says what it is. Raises OSError where that fails; FileExistsError where the file exists."""
        self._path = path
        self._max_bytes = max_bytes
        self._written = 0
        self._create(f"{head}\n".encode() if head else b"")
        self._size = self._written  # of the file with what is queued
        self._lines: list[str] = []
        self._queue: list[bytes] = []
        self._queueing = threading.Lock()
        self._stopped = False
        self._reported_lost = 0
        self.lost = 0
        self._thread = PeriodicThread(self._write_queue)
        self._thread.pause_around_forks()
        with contextlib.suppress(RuntimeError):  # no further thread: close() writes
            self._thread.start()

    def _create(self, head: bytes) -> None:
        """The file gets its name once its head is in it: other ranks read the head, to know whose file it is. On a file
        system without hard links it has its name from the start."""
        folder, name = os.path.split(self._path)
        unnamed = os.path.join(folder, f".{name}.{os.getpid()}")
        self._fd = os.open(unnamed, _NEW_FILE, 0o644)
        try:
            self._write_all(head)
            os.link(unnamed, self._path)
        except FileExistsError:
            os.close(self._fd)
            raise
        except OSError:
            os.close(self._fd)
            self._written = 0
            self._fd = os.open(self._path, _NEW_FILE, 0o644)
            self._write_all(head)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unnamed)

    def write(self, line: str) -> None:
        """Keeps a line, without its line feed, until flush()."""
        self._lines.append(line)

    def flush(self) -> None:
        """Queues the kept lines for writing, or counts them as lost. Never raises."""
        lines, self._lines = self._lines, []
        self._enqueue(lines)

    def write_at_once(self, line: str) -> None:
        """Queues a line for writing, before those that are kept. From any thread. Never raises."""
        self._enqueue([line])

    def settle(self, seconds: float) -> None:
        """Waits until what is queued is written, at most so long: for a process that may be killed next."""
        until = time.monotonic() + seconds
        while self._queue and not self._stopped and time.monotonic() < until:
            time.sleep(0.005)

    def _enqueue(self, lines: list[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        with self._queueing:
            if not self._stopped and self._size + len(data) > self._max_bytes:
                self._stop_writing(f"it has {self._size} bytes, and the limit is {self._max_bytes}")
            if not self._stopped and sum(map(len, self._queue)) + len(data) > _MAX_QUEUED_BYTES:
                self._stop_writing("its disk is too slow")
            if self._stopped:
                self.lost += len(lines)
            else:
                self._size += len(data)
                self._queue.append(data)

    def _write_queue(self) -> None:
        while self._queue:
            data = self._queue[0]
            try:
                self._write_all(data)
                del self._queue[0]
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._written)  # do not leave half a line
                self._stop_writing(error.strerror or "it cannot be written")
                self.lost += sum(each.count(b"\n") for each in self._queue)
                self._queue.clear()

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._written += len(data)

    def _stop_writing(self, reason: str) -> None:
        self._stopped = True
        log.warning("laggard: the recording %s ends here, the training goes on: %s", self._path, reason)

    def newly_lost(self) -> int:
        """The number of lines that were lost since the last call."""
        before, self._reported_lost = self._reported_lost, self.lost
        return self.lost - before

    def close(self) -> None:
        """Writes what is left and closes the file. Where the disk is stuck, the rest is not written."""
        self.flush()
        if self._thread.stop():
            self._write_queue()
            os.close(self._fd)
