"""How far the ring is, on a terminal and nowhere else."""

from __future__ import annotations

import sys
from typing import Final, TextIO

_WIDTH: Final = 24


class Progress:
    """A bar on one line of standard error, which goes when the ring ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()

    def show(self, share: float, text: str) -> None:
        """`share`: of the whole, from 0 to 1."""
        if self._shown:
            full = round(_WIDTH * min(1.0, max(0.0, share)))
            self._stream.write(f"\r\x1b[K[{'#' * full}{'.' * (_WIDTH - full)}] {text}")
            self._stream.flush()

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
