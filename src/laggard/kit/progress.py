"""The progress of long work: one line on standard error where that is a terminal, gone at the end, and nothing
elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, TextIO

_BAR: Final = 24  # cells
_INTERVAL_SECONDS: Final = 0.25
_QUIET_SECONDS: Final = 0.5
"""The time up to which work is not shown: a line that comes and goes says nothing."""
_ESTIMATE_SECONDS: Final = 1.0
_READ_BYTES = "/proc/self/io"


class Bar:
    """A bar on one line of standard error, which goes when the work ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.shown = self._stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._drawn = False
        self._share = 1.0
        self._first = (0.0, 1.0)
        """The time at which the share was told first, and that share."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def show(self, share: float | None, text: str) -> None:
        """`share`: of the whole, from 0 to 1; None: not known. One that is smaller than the last begins anew."""
        if not self.shown:
            return
        line = text
        if share is not None:
            share = min(1.0, max(0.0, share))
            if share < self._share or not share:
                self._first = (time.monotonic(), share)
            self._share = share
            line = f"{_bar(share)}{text}{self._left_text()}"
        import shutil  # slow to import, and only where somebody watches

        self._write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")  # a line that is full would scroll

    def _left_text(self) -> str:
        """`, about 12 s left`; empty while there is too little to tell by."""
        began, before = self._first
        elapsed = time.monotonic() - began
        if self._share - before < 0.01 or self._share == 1.0 or elapsed < _ESTIMATE_SECONDS:
            return ""
        seconds = elapsed * (1.0 - self._share) / (self._share - before)
        return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"

    def clear(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._drawn = True
        with contextlib.suppress(OSError):  # the terminal is gone: the work is not
            self._stream.write(text)
            self._stream.flush()


class Progress:
    """Work in stages, drawn a few times a second by a thread: the work itself only counts, and is as fast as without.

    Where standard error is no terminal there is no thread. What forks takes a Bar."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._bar = Bar(stream)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._done = 0.0
        self._stage = _Stage("", None, lambda: 0.0)

    def __enter__(self) -> Progress:
        if self._bar.shown:
            self._thread = threading.Thread(target=self._draw, name="laggard-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._bar.clear()

    def begin(self, what: str, total: float | None = None) -> None:
        """Begins a stage of `total` units of work, which add() counts; None: how much it is, is not known."""
        self._done = 0.0
        self._stage = _Stage(what, total, lambda: self._done)

    def begin_reading(self, what: str, total_bytes: int) -> None:
        """Begins a stage that reads so many bytes of files. The kernel counts them for this process, so that what reads
        need not."""
        before = _bytes_read()
        total = None if before is None or not total_bytes else float(total_bytes)
        self._stage = _Stage(what, total, lambda: (_bytes_read() or 0) - (before or 0))

    def add(self, amount: float) -> None:
        self._done += amount

    def _draw(self) -> None:
        wait = _QUIET_SECONDS
        while not self._ended.wait(wait):
            wait = _INTERVAL_SECONDS
            self._bar.show(*self._stage.now())


class _Stage:
    def __init__(self, what: str, total: float | None, done: Callable[[], float]) -> None:
        self._what, self._total, self._done = what, total, done
        self._began = time.monotonic()

    def now(self) -> tuple[float | None, str]:
        elapsed = time.monotonic() - self._began
        if self._total is None:
            return None, f"{self._what}, {elapsed:.0f} s"
        share = min(1.0, self._done() / self._total)
        return share, f"{share:.0%}, {self._what}".replace("%", " %", 1)


def size_of(paths: Iterable[str | os.PathLike[str]]) -> int:
    """The bytes of the files at `paths` and of those directly in directories there. What cannot be read counts
    nothing."""
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            if os.path.isdir(path):
                with os.scandir(path) as entries:
                    total += sum(entry.stat().st_size for entry in entries if entry.is_file())
            else:
                total += os.stat(path).st_size
    return total


def size_text(count: int) -> str:
    """`3.2 GB`, `41 MB`."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.2g} {name}" if count < 10 * unit else f"{count / unit:.0f} {name}"
    return f"{count / 1e3:.0f} kB"


def _bar(share: float) -> str:
    full = round(_BAR * share)
    return f"[{'#' * full}{'.' * (_BAR - full)}] "


def _bytes_read() -> int | None:
    """All bytes that this process has read; None where the kernel does not count."""
    try:
        with open(_READ_BYTES, "rb") as file:
            return int(file.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return None
