"""Records for how long this process's threads waited for a CPU. A recording is read where no agent looked: what the
agent sees of a live job has to be in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from laggard.processes.thread_times import ThreadTimes, ran_and_queued, read_thread_times

LOOK_SECONDS: Final = 5.0
FIRST_LOOK_SECONDS: Final = 2.0


class CpuWaitLines:
    """Its look() is called on the writer thread, about once a second."""

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        """`write`: of RecordingSink, write_at_once()."""
        self._write = write
        self._before: ThreadTimes | None = None
        self._looked_at = 0.0
        self._told = False

    def look(self) -> None:
        """Writes how the threads fared since the last look, where that is long enough ago."""
        now = time.perf_counter()
        seconds = now - self._looked_at
        if self._before is not None and seconds < (LOOK_SECONDS if self._told else FIRST_LOOK_SECONDS):
            return
        try:
            times = read_thread_times("self")
        except (OSError, ValueError):  # the kernel does not count
            return
        before, self._before, self._looked_at = self._before, times, now
        if before is not None:
            self._told = True
            self._write({"kind": "cpu_wait", "cpu_wait": _between(before, times, seconds)})


def _between(before: ThreadTimes, times: ThreadTimes, seconds: float) -> dict[str, float]:
    running, queued = ran_and_queued(before, times)
    return {
        "seconds": round(seconds, 3),
        "running_seconds": round(running, 6),
        "queued_seconds": round(queued, 6),
        "throttled_seconds": round(max(0.0, times.throttled - before.throttled), 6),
    }
