"""The work of this process's own threads: which are busy, and for how long they wait for a CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from laggard.kit.processes import ThreadTimes, ran_and_queued, read_thread_times
from laggard.rankfile.fact_names import OWN_THREADS
from laggard.trainer_hooks.record.ending import Facts

LOOK_SECONDS: Final = 5.0
FIRST_LOOK_SECONDS: Final = 1.0
MAX_NAMED: Final = 4
MAX_NAME: Final = 48  # characters
MAX_THREADS: Final = 256  # that are looked at
MIN_CPU: Final = 0.02  # of the time: who runs less is not named
_OWN: Final = "laggard"
_TASKS: Final = "/proc/self/task"


class _Looks:
    """What is looked at now and then: after `first_seconds`, and every LOOK_SECONDS once something was told."""

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._looked_at: float | None = None
        self._told = False

    def _seconds_if_due(self) -> float | None:
        """The time since the last look, 0 at the first one; None where none is due."""
        now = time.perf_counter()
        seconds = 0.0 if self._looked_at is None else now - self._looked_at
        if self._looked_at is not None and seconds < (LOOK_SECONDS if self._told else self._first_seconds):
            return None
        self._looked_at = now
        return seconds


class OwnThreads(_Looks):
    """Its look() is called on the writer thread, about once a second; woke() each time that thread wakes."""

    def __init__(self, facts: Facts, training_thread: Callable[[], int]) -> None:
        """`training_thread` returns the ident of the thread that trains."""
        super().__init__(FIRST_LOOK_SECONDS)
        self._facts = facts
        self._training = training_thread
        self._cpu: dict[int, int] | None = None  # by native id: nanoseconds at the last look
        self._queued = 0
        self._late = 0  # nanoseconds, since the last look
        self._wakes = 0
        self._began = time.perf_counter_ns()
        self._collecting_since = self._collected = 0  # nanoseconds

    def woke(self, late_ns: int) -> None:
        """The calling thread woke so much later than it asked for."""
        self._late += max(0, late_ns)
        self._wakes += 1

    def collecting(self, phase: str, _: object) -> None:
        """One of gc.callbacks: a garbage collection, in which no thread runs Python, starts or stops."""
        now = time.perf_counter_ns()
        if phase == "start":
            self._collecting_since = now
        elif self._collecting_since:
            self._collected += now - self._collecting_since

    def look(self) -> None:
        """Says how the threads ran since the last look, where that is long enough ago."""
        seconds = self._seconds_if_due()
        if seconds is None:
            return
        before, spent_by_now = self._cpu, self._read()
        self._cpu = spent_by_now
        queued_before, self._queued = self._queued, _times(threading.get_native_id())[1]
        late, wakes = max(0, self._late - (self._queued - queued_before)), self._wakes
        self._late = self._wakes = 0
        if before is not None and wakes:
            self._told = True
            names = {thread.native_id: thread.name for thread in threading.enumerate()}
            ran: dict[str, float] = {}
            for tid, spent in spent_by_now.items():
                name = names.get(tid, "")
                ran[name] = ran.get(name, 0.0) + max(0, spent - before.get(tid, 0)) / 1e9
            collected = self._collected / max(1, time.perf_counter_ns() - self._began)
            self._facts.set(OWN_THREADS, _fact(seconds, ran, late / wakes / 1e9, collected))

    def _read(self) -> dict[int, int]:
        """The CPU time of each Python thread but the one that trains and laggard's own, in nanoseconds."""
        found, training = {}, self._training()
        for thread in threading.enumerate()[:MAX_THREADS]:
            tid = thread.native_id
            if tid is not None and thread.ident != training and not thread.name.startswith(_OWN):
                found[tid] = _times(tid)[0]
        return found


def _times(tid: int) -> tuple[int, int]:
    """The nanoseconds for which a thread of this process ran, and for which it waited in the run queue; zeros where the
    kernel does not tell."""
    try:
        with open(f"{_TASKS}/{tid}/schedstat", "rb") as file:
            ran, queued, _ = file.read(128).split()
        return int(ran), int(queued)
    except (OSError, ValueError):
        return 0, 0


def _fact(seconds: float, ran: dict[str, float], late: float, collected: float) -> dict[str, Any]:
    busy = sorted(((spent, name) for name, spent in ran.items() if spent >= MIN_CPU * seconds), reverse=True)
    return {
        "seconds": round(seconds, 3),
        "late_seconds": round(late, 6),  # a wake, on average
        "busy_seconds": round(sum(ran.values()), 3),
        "collecting_ratio": round(collected, 4),
        "names": [name[:MAX_NAME] for _, name in busy[:MAX_NAMED]],
    }


# Records for how long this process's threads waited for a CPU. A recording is read where no agent looked: what the
# agent sees of a live job has to be in it.

CPU_WAIT_FIRST_LOOK_SECONDS: Final = 2.0


class CpuWaitLines(_Looks):
    """Its look() is called on the writer thread, about once a second."""

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        """`write`: of RecordingSink, write_at_once()."""
        super().__init__(CPU_WAIT_FIRST_LOOK_SECONDS)
        self._write = write
        self._before: ThreadTimes | None = None

    def look(self) -> None:
        """Writes how the threads fared since the last look, where that is long enough ago."""
        seconds = self._seconds_if_due()
        if seconds is None:
            return
        try:
            times = read_thread_times("self")
        except (OSError, ValueError):  # the kernel does not count
            return
        before, self._before = self._before, times
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
