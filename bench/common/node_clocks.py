"""Clocks of its own for each node of one machine. Needs root, a C compiler and Linux 5.6.

A time namespace has the monotonic clock start elsewhere; a preloaded library has the wall clock be ahead or behind, and
all clocks of a node drift.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("node_clock.c")
_CLONE_NEWTIME = 0x80


class Clock(NamedTuple):
    """How a node's clocks differ from this machine's: seconds of the wall clock, whole seconds of the monotonic one,
    and the drift of both as a ratio."""

    ahead: float
    monotonic: int
    drift: float


CLOCKS = (Clock(0.0, 0, 2e-4), Clock(3600.0, 5000, -2e-4), Clock(-90.0, -60, 5e-5), Clock(0.7, 100_000, -1e-4))
"""No monotonic clock may be below 0: by this one a machine has to be up for a minute."""


def built(folder: Path) -> Path:
    """The library to preload, built into `folder`."""
    library = folder / "node_clock.so"
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    return library


class NodeClocks:
    """A with statement around the life of these clocks; what this process starts meanwhile has the library loaded."""

    def __init__(self, folder: Path, clocks: Sequence[Clock] = CLOCKS) -> None:
        self._folder, self._clocks = folder, clocks
        self._began = time.monotonic()

    @contextmanager
    def made(self) -> Iterator[NodeClocks]:
        library = built(self._folder)
        spaces = [self._space(node) for node in range(len(self._clocks))]
        before = os.environ.get("LD_PRELOAD")
        try:
            for space, clock in zip(spaces, self._clocks, strict=True):
                space.touch()
                moved = (f"--monotonic={clock.monotonic}", f"--boottime={clock.monotonic}")
                subprocess.run(["unshare", f"--time={space}", *moved, "--fork", "true"], check=True)
            os.environ["LD_PRELOAD"] = str(library)
            yield self
        finally:
            os.environ.pop("LD_PRELOAD", None) if before is None else os.environ.update(LD_PRELOAD=before)
            for space in spaces:
                subprocess.run(["umount", space], stderr=subprocess.DEVNULL)

    def enter(self, node: int) -> tuple[str, ...]:
        """The words before a command that run it by the clocks of a node."""
        return ("env", f"NODE_CLOCK={self._words(node)}", "nsenter", f"--time={self._space(node)}")

    def described(self, node: int) -> str:
        """A node's clocks in words for become()."""
        return f"{self._space(node)} {self._words(node)}"

    def _space(self, node: int) -> Path:
        return self._folder / f"time{node}"

    def _words(self, node: int) -> str:
        clock = self._clocks[node]
        return f"{clock.ahead} {clock.drift} {self._began + clock.monotonic}"


def become(described: str) -> None:
    """Gives this process, which has one thread, the clocks of a node. Raises OSError where the kernel refuses."""
    space, *words = described.split()
    with open(space) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWTIME):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    ctypes.CDLL(None).set_node_clock(*map(ctypes.c_double, map(float, words)))
