"""A byte in a file, by which a rank tells a process that disturbs it when to. Standard library only."""

from __future__ import annotations

import mmap
from pathlib import Path


class Flag:
    """`path`: made where it is not there; all who open it see the same byte."""

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            if not path.stat().st_size:
                file.write(b"\0")
                file.flush()
            self._memory = mmap.mmap(file.fileno(), 1)

    @property
    def is_set(self) -> bool:
        return self._memory[0] != 0

    def set(self, on: bool) -> None:
        self._memory[0] = int(on)
