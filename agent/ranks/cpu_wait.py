"""The time for which a rank's threads wait for a CPU, in the run queue behind others or held back by a quota of their
cgroup, and who runs meanwhile.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

from msgspec import structs

from laggard.agent.ranks.cpu_neighbours import (
    CoreTimes,
    ProcessTimes,
    Threads,
    add_up,
    neighbours,
    read_cores,
    read_processes,
    read_threads,
)
from laggard.model import CpuNeighbour
from laggard.processes.thread_times import ThreadTimes, ran_and_queued, read_thread_times
from laggard.wire.ranks import CpuWait

WINDOW_SECONDS: Final = 5.0
"""The least time over which waits are counted, where the rank has been seen for as long. A rank of a live job is slow
for so long before it is accused, so that this is about that time, and the first verdict has it already."""
MIN_WINDOW_SECONDS: Final = 2.0
"""The least time between two samples that are compared: less says too little, and costs too much."""
NEIGHBOURS_WAIT_RATIO: Final = 0.1
"""The share of the CPU time which the threads asked for and missed from which on it is looked at who has it."""
_LOOK_SECONDS: Final = 9.0
"""The time from one look at all processes of the machine to the next: with thousands of them it takes tens of
milliseconds."""
_MAX_LOOK_AGE_SECONDS: Final = 25.0
"""The age from which on a look is not compared with."""
_CORES_SECONDS: Final = 0.5
"""The age from which on the cores' times are read anew: much less than MIN_WINDOW_SECONDS."""
_MAX_SAMPLES: Final = 64


class _Times(NamedTuple):
    """Cumulative times in seconds. `cores`: what the cores did on which the process may run."""

    at: float
    threads: ThreadTimes
    cores: CoreTimes


class CpuWaits:
    """Samples the ranks of this node each time that they are read. Not thread-safe: its owner has a lock."""

    def __init__(self, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self._proc, self._cgroups = proc, cgroups
        self._samples: dict[str, deque[_Times]] = {}
        self._looks: deque[ProcessTimes] = deque(maxlen=2)
        self._threads: dict[int, Threads] = {}  # by pid, since the last look
        self._cores: tuple[float, dict[int, CoreTimes]] = (-_CORES_SECONDS, {})

    def sample(self, name: str, pid: int, owner: int = 0) -> CpuWait | None:
        """Takes a sample of process `pid` of user `owner`, where the last is MIN_WINDOW_SECONDS old, and compares it
        with one that is WINDOW_SECONDS old. None where none is old enough, or the kernel does not count."""
        samples = self._samples.setdefault(name, deque(maxlen=_MAX_SAMPLES))
        if not samples or time.monotonic() - samples[-1].at >= MIN_WINDOW_SECONDS:
            now = self._read(pid)
            if now is None:
                return None
            samples.append(now)
        while len(samples) > 1 and samples[-1].at - samples[1].at >= WINDOW_SECONDS:
            samples.popleft()
        wait = _between(samples[0], samples[-1])
        if wait is None or wait.queued_seconds < NEIGHBOURS_WAIT_RATIO * (wait.running_seconds + wait.queued_seconds):
            return wait
        return structs.replace(wait, neighbours=self._neighbours(pid, owner, samples[-1].at))

    def _neighbours(self, pid: int, owner: int, now: float) -> tuple[CpuNeighbour, ...]:
        """The processes that took the rank's cores between the last two looks, which all ranks share; the first look
        tells nothing."""
        try:
            if self._looks and now - self._looks[-1].at > _MAX_LOOK_AGE_SECONDS:
                self._looks.clear()
            if not self._looks or now - self._looks[-1].at >= _LOOK_SECONDS:
                self._looks.append(read_processes(now, self._proc))
                self._threads.clear()
            if len(self._looks) < 2:
                return ()
            cores = os.sched_getaffinity(pid)
            return neighbours(self._looks[0], self._looks[1], pid, owner, cores, self._threads_of, self._proc)
        except (OSError, ValueError):  # ended meanwhile
            return ()

    def _threads_of(self, pid: int) -> Threads:
        """Looked at once for all ranks."""
        if pid not in self._threads:
            self._threads[pid] = read_threads(pid, self._proc)
        return self._threads[pid]

    def _core_times(self) -> dict[int, CoreTimes]:
        """Read once for all ranks of a scan: with hundreds of cores the kernel needs milliseconds to write them."""
        now = time.monotonic()
        if now - self._cores[0] >= _CORES_SECONDS:
            self._cores = now, read_cores(self._proc)
        return self._cores[1]

    def keep(self, names: Collection[str]) -> None:
        """Forgets all others."""
        self._samples = {name: samples for name, samples in self._samples.items() if name in names}

    def _read(self, pid: int) -> _Times | None:
        try:
            threads = read_thread_times(pid, self._proc, self._cgroups)
            cores = add_up(self._core_times(), os.sched_getaffinity(pid))
        except (OSError, ValueError):  # ended meanwhile, or a kernel without schedstat
            return None
        return _Times(time.monotonic(), threads, cores)


def _between(first: _Times, last: _Times) -> CpuWait | None:
    seconds = last.at - first.at
    if seconds < MIN_WINDOW_SECONDS:
        return None
    running, queued = ran_and_queued(first.threads, last.threads)
    throttled = max(0.0, last.threads.throttled - first.threads.throttled)
    busy, stolen = last.cores.busy - first.cores.busy, last.cores.stolen - first.cores.stolen
    share = stolen / busy if stolen > 0 and busy > 0 else 0.0
    return CpuWait(seconds, running, queued, throttled, running * share)
