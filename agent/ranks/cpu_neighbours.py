"""The neighbours on a rank's cores: the processes of this machine that took the most CPU time there.

All processes are looked at only while a rank's threads wait in the run queue. /proc/PID/stat has a process's CPU time,
and for each thread the core on which it last ran (proc_pid_stat(5)); /proc/stat has the time that the hypervisor took
from each core (steal, proc_stat(5)).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from laggard.model import CpuNeighbour
from laggard.processes.stat import read_stat

_MAX_PROCESSES: Final = 4096
_MAX_CANDIDATES: Final = 16  # the busiest, of whose threads the cores are looked at
_MAX_THREADS: Final = 64
_MAX_NAMED: Final = 3
_MIN_CORE_SHARE: Final = 0.1  # of a core; who takes less holds nobody up

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_BUSY: Final = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq of a line of /proc/stat
_STEAL: Final = 7

Threads: TypeAlias = tuple[tuple[float, int], ...]
"""Of each thread of a process, its CPU seconds since it began, and the core on which it last ran."""


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
