"""The content that a daemon has of a small file, such as a secret that rotates: read anew when the file changes.

A file that is gone, or only half there, for a moment is no end of what it said: that holds, and the log says so once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from laggard.errors import UsageError

Value = TypeVar("Value")


class _Stamp(NamedTuple):
    """The stamp of a file that changes when it is written or replaced, or gets another mode or owner."""

    modified: int
    changed: int
    inode: int
    size: int


class ReadAnew(Generic[Value]):
    """The value of the file at `path`. To be asked by any thread."""

    def __init__(self, path: str, read: Callable[[], Value], what: str, told: Callable[[Value], str]) -> None:
        """`read` raises UsageError where the file cannot be used; so does this. `what` the file has, and what is `told`
        of a new value, go into the log: neither may show a secret."""
        self._path, self._read, self._what, self._told = path, read, what, told
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._value = read()
        self._complaint = ""

    def value(self) -> Value:
        """Returns what the file says now, or what it said last."""
        with self._lock:
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self._look(stamp)
            return self._value

    def _look(self, stamp: _Stamp | None) -> None:
        """Reads the file. One that cannot be used is read again when it is asked for next: what was wrong need not be
        the file (too many are open), and would then leave no mark on it."""
        import logging  # here: the gate, which has to start fast, reads no file anew

        log = logging.getLogger("laggard.secrets")
        try:
            value = self._read()
        except UsageError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the former %s stays in use: %s", self._what, error)
            return
        self._value, self._stamp, self._complaint = value, stamp, ""
        log.info("%s", self._told(value))


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
