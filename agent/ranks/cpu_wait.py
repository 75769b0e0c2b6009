"""The time for which a rank's threads wait for a CPU, in the run queue behind others or held back by a quota of their
cgroup, and who runs meanwhile.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from msgspec import structs

from laggard.kit.processes import ThreadTimes, ran_and_queued, read_stat, read_thread_times
from laggard.model import CpuNeighbour
from laggard.wire.ranks import CpuWait

# The neighbours on a rank's cores: the processes of this machine that took the most CPU time there.
#
# All processes are looked at only while a rank's threads wait in the run queue. /proc/PID/stat has a process's CPU
# time, and for each thread the core on which it last ran (proc_pid_stat(5)); /proc/stat has the time that the
# hypervisor took from each core (steal, proc_stat(5)).

_MAX_PROCESSES: Final = 4096
_MAX_CANDIDATES: Final = 16  # the busiest, of whose threads the cores are looked at
_MAX_THREADS: Final = 64
_MAX_NAMED: Final = 3
_MIN_CORE_SHARE: Final = 0.1  # of a core; who takes less holds nobody up

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_BUSY: Final = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq of a line of /proc/stat
_STEAL: Final = 7

Threads: TypeAlias = tuple[tuple[float, int], ...]
"""The CPU seconds of each thread of a process since it began, and the core on which it last ran."""


class ProcessTimes(NamedTuple):
    """CPU seconds of each process by pid and start, so that a pid that is used again is another process; at a moment on
    the monotonic clock."""

    at: float
    seconds: Mapping[tuple[int, int], float]


class CoreTimes(NamedTuple):
    """The times of cores since boot, all of them together, in seconds."""

    busy: float
    stolen: float


def read_processes(at: float, proc: str = "/proc") -> ProcessTimes:
    """The CPU times of all processes that can be seen, of _MAX_PROCESSES at most: the newest ones."""
    pids = sorted((int(name) for name in os.listdir(proc) if name.isdigit()), reverse=True)[:_MAX_PROCESSES]
    seconds = {}
    for pid in pids:
        if stat := read_stat(pid, proc):
            seconds[pid, stat.start_ticks] = stat.cpu_seconds
    return ProcessTimes(at, seconds)


def read_cores(proc: str = "/proc") -> dict[int, CoreTimes]:
    """The times of each core by its number; empty where the kernel does not count."""
    try:
        with open(f"{proc}/stat", "rb") as file:
            lines = file.read(1 << 20).decode().splitlines()
    except (OSError, ValueError):
        return {}
    times = {}
    for line in lines:
        name, *fields = line.split()[:11]
        if name[:3] == "cpu" and name[3:].isdigit() and len(fields) > _STEAL:
            busy = sum(int(fields[place]) for place in _BUSY)
            times[int(name[3:])] = CoreTimes(busy / _TICKS, int(fields[_STEAL]) / _TICKS)
    return times


def add_up(times: Mapping[int, CoreTimes], cores: Collection[int]) -> CoreTimes:
    """Zeros where nothing is known of any of `cores`."""
    known = [times[core] for core in cores if core in times]
    return CoreTimes(sum(each.busy for each in known), sum(each.stolen for each in known))


def neighbours(
    before: ProcessTimes,
    after: ProcessTimes,
    pid: int,
    owner: int,
    cores: Collection[int],
    threads: Callable[[int], Threads],
    proc: str = "/proc",
) -> tuple[CpuNeighbour, ...]:
    """The processes that took the most of `cores` between two looks, but process `pid` itself, a rank of user
    `owner`. `threads` returns what read_threads() returns for a pid."""
    taken = {key: spent - before.seconds.get(key, 0.0) for key, spent in after.seconds.items() if key[0] != pid}
    least = _MIN_CORE_SHARE * (after.at - before.at)
    busiest = sorted((key for key, spent in taken.items() if spent >= least), key=taken.__getitem__, reverse=True)
    found = []
    for key in busiest[:_MAX_CANDIDATES]:
        share = _share_on(threads(key[0]), cores)
        if share * taken[key] >= least and (named := _named(key, share * taken[key], owner, proc)):
            found.append(named)
    return tuple(sorted(found, key=lambda each: -each.seconds)[:_MAX_NAMED])


def read_threads(pid: int, proc: str = "/proc") -> Threads:
    """Empty where the process is gone."""
    tasks = f"{proc}/{pid}/task"
    try:
        names = os.listdir(tasks)[:_MAX_THREADS]
    except OSError:
        return ()
    each = (read_stat(name, tasks) for name in names)
    return tuple((stat.cpu_seconds, stat.core) for stat in each if stat)


def _share_on(threads: Threads, cores: Collection[int]) -> float:
    """The share of a process's CPU time that its threads on `cores` have had."""
    total = sum(seconds for seconds, _ in threads)
    return sum(seconds for seconds, core in threads if core in cores) / total if total else 0.0


def _named(key: tuple[int, int], seconds: float, owner: int, proc: str) -> CpuNeighbour | None:
    """None where the process has ended meanwhile."""
    pid, started = key
    try:
        uid = os.stat(f"{proc}/{pid}").st_uid
        with open(f"{proc}/{pid}/comm", "rb") as file:
            command = file.read(64).decode(errors="replace").strip()
    except OSError:
        return None
    stat = read_stat(pid, proc)
    if stat is None or stat.start_ticks != started:
        return None
    return CpuNeighbour(pid, uid, round(seconds, 3), command if uid in (0, owner) else "")


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
