"""The child processes of a rank, such as a DataLoader's workers, and their stacks.

A forked child has inherited faulthandler's handler of CHILD_SIGNAL, which writes the stack of the thread that gets the
signal into the rank's own fault file. It is sent to a child whose kernel says that it handles the signal, and to no
other: one that was started anew would be ended by it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from typing import Final

from laggard.stacks.fault_text import last_dump
from laggard.stacks.frames import Frame
from laggard.stacks.sampled import Counted, Thread, shortened, text_of
from laggard.trainer_hooks.stacks.fault_file import CHILD_SIGNAL, FaultFile

MAX_CHILDREN: Final = 32
_ANSWER_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.001


class Children:
    """Asks the children in turn, one at each call of take()."""

    def __init__(self, faults: FaultFile) -> None:
        self._faults = faults
        self._names: dict[int, str] = {}
        self._refusing: set[int] = set()
        self._turn = 0
        self._counts: dict[int, Counter[tuple[Frame, ...]]] = {}

    def take(self) -> None:
        """Asks the next child. Waits up to a tenth of a second for its answer, without the GIL."""
        living = _children() if self._faults.is_handled_by_children() else {}
        self._names |= living
        pids = [pid for pid in living if pid not in self._refusing]
        if not pids:
            return
        pid = pids[self._turn % len(pids)]
        self._turn += 1
        if not _handles(pid):
            self._refusing.add(pid)
            return
        before = self._faults.size()
        with contextlib.suppress(OSError):
            os.kill(pid, CHILD_SIGNAL)
            frames = self._answer(before)
            if frames:
                self._counts.setdefault(pid, Counter())[frames] += 1

    def take_each(self) -> None:
        """Asks each child once."""
        for _ in _children():
            self.take()

    def threads(self) -> tuple[Thread, ...]:
        return tuple(
            Thread(text_of(self._names.get(pid, "")), tuple(_counted(counts)), pid)
            for pid, counts in self._counts.items()
        )

    def _answer(self, before: int) -> tuple[Frame, ...]:
        deadline = time.monotonic() + _ANSWER_SECONDS
        size, last = before, -1
        while (size != last or size == before) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            last, size = size, self._faults.size()
        dump = last_dump(self._faults.text_since(before))
        if dump is not None and not dump.timed_out and not dump.fatal:
            self._faults.empty()
            return dump.threads[0].frames
        return ()


def _counted(counts: Counter[tuple[Frame, ...]]) -> list[Counted]:
    told = []
    for frames, count in counts.most_common():
        kept, left_out = shortened(frames)
        told.append(Counted(count, kept, left_out=left_out))
    return told


def _children() -> dict[int, str]:
    """The children that multiprocessing started in this process, by pid, with their names; none is waited for."""
    process = sys.modules.get("multiprocessing.process")
    found = {}
    for child in list(getattr(process, "_children", ()))[:MAX_CHILDREN]:
        pid = getattr(child, "pid", None)
        if isinstance(pid, int):
            found[pid] = str(getattr(child, "name", ""))
    return found


def _handles(pid: int, number: int = CHILD_SIGNAL, proc: str = "/proc") -> bool:
    """Whether the process is a child of this one and handles the signal, as the kernel says."""
    try:
        with open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        mask = int(lines["SigCgt"], 16)
        return bool(mask >> (number - 1) & 1) and int(lines["PPid"]) == os.getpid()
    except (OSError, KeyError, ValueError):
        return False
