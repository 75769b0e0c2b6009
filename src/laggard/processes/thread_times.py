"""The time for which a process's threads ran, and for which they waited for a CPU: in the run queue behind others, or
held back by a quota of their cgroup. Standard library only.

The kernel counts both: /proc/PID/task/TID/schedstat has the time on a CPU and the time in the run queue (Linux,
Documentation/scheduler/sched-stats.rst), the cgroup's cpu.stat the time for which its quota held it back.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from laggard.processes.cgroups import cgroup_files

MAX_THREADS: Final = 64
"""The oldest of a process: those that train, and not those of a hundred loaders."""
_MAX_BYTES: Final = 16_384
_THROTTLED: Final = re.compile(r"^throttled_(usec|time) (\d+)$", re.MULTILINE)  # of version 2, in us; of 1, in ns


class ThreadTimes(NamedTuple):
    """Cumulative times in seconds. `threads`: by thread, on a CPU and in the run queue."""

    threads: dict[str, tuple[float, float]]
    throttled: float


def read_thread_times(pid: int | str, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> ThreadTimes:
    """The times of a process, or of `self`. Raises OSError, ValueError: it ended, or the kernel does not count."""
    tasks = f"{proc}/{pid}/task"
    threads = {}
    for thread in os.listdir(tasks)[:MAX_THREADS]:  # in the order in which they began; numbers are used again
        running, queued, *_ = _read(f"{tasks}/{thread}/schedstat").split()
        threads[thread] = int(running) / 1e9, int(queued) / 1e9
    files = cgroup_files(_read(f"{proc}/{pid}/cgroup"), "cpu", "cpu.stat", "cpu.stat", cgroups)
    return ThreadTimes(threads, sum(map(_throttled, files)))


def ran_and_queued(first: ThreadTimes, last: ThreadTimes) -> tuple[float, float]:
    """The seconds that the threads of `last` ran, and that they were in the run queue, since `first`, all together."""
    nothing = (0.0, 0.0)
    pairs = [(first.threads.get(thread, nothing), times) for thread, times in last.threads.items()]
    running = sum(max(0.0, after[0] - before[0]) for before, after in pairs)
    return running, sum(max(0.0, after[1] - before[1]) for before, after in pairs)


def _throttled(path: str) -> float:
    try:
        found = _THROTTLED.search(_read(path))
    except OSError:
        return 0.0
    return int(found[2]) / (1e6 if found[1] == "usec" else 1e9) if found else 0.0


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")
