"""The process of a memory cgroup that the kernel killed for want of memory, by the cgroup's count.

The count says how many were killed and not which: also a launcher ends processes by SIGKILL, once it has seen that one
is gone. The kernel counts before it kills, so a kill belongs to the first process that ends after it. Where that one
ended in another way, as a rank does whose data loader was killed, the kernel killed a process that nobody watches.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from laggard.processes.cgroups import cgroup_files

_TOGETHER_SECONDS: Final = 1.0
"""The time after the first end for which a second kill of the same moment waits for its process. Our own choice: who
frees much memory ends a little later; a launcher's SIGKILL usually comes after a SIGTERM and more time than that."""
_MAX_BYTES: Final = 16_384


class OomKills:
    """The kills of each cgroup, and how many of them have their process. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, float]] = {}  # by file: the last count, and when it was first seen
        self._told: dict[str, int] = {}  # by file: so many of these kills have their process, or never get one

    def ended(self, before: Mapping[str, int], at: float) -> str:
        """Returns the file and the count that speak for a kill of this process; else "". It is to be called for each
        process in the order in which they end, `at` in seconds. `before`: read_oom_kills() when the process was seen
        first."""
        with self._lock:
            told = [
                f"{path}: oom_kill {count}"
                for path, count in count_oom_kills(before).items()
                if self._takes(path, before[path], count, at)
            ]
        return told[0] if told else ""

    def keep(self, paths: Collection[str]) -> None:
        """Forgets all other files."""
        with self._lock:
            for path in self._told.keys() - set(paths):
                del self._told[path], self._counted[path]

    def _takes(self, path: str, before: int, count: int, at: float) -> bool:
        """Whether the process that ended `at` takes one of the kills that `path` counts."""
        counted, since = self._counted.get(path, (before, at))
        since = at if count > counted else since
        self._counted[path] = count, since
        if at - since > _TOGETHER_SECONDS:
            self._told[path] = count
        told = max(before, self._told.get(path, 0))
        self._told[path] = min(told + 1, count)
        return count > told


def read_oom_kills(pid: int, root: str = "/") -> dict[str, int]:
    """The number of processes that the kernel has killed for want of memory in the process's memory cgroup, by the file
    that counts them; empty where no such file can be read."""
    try:
        lines = _read(f"{root}proc/{pid}/cgroup")
    except OSError:
        return {}
    return count_oom_kills(cgroup_files(lines, "memory", "memory.events", "memory.oom_control", f"{root}sys/fs/cgroup"))


def count_machines_oom_kills(root: str = "/") -> int | None:
    """The number of processes that the kernel of this machine has killed for want of memory since boot, in a cgroup or
    not; None where it does not tell (Linux before 4.13)."""
    try:
        found = re.search(r"^oom_kill (\d+)$", _read(f"{root}proc/vmstat"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def count_oom_kills(paths: Iterable[str]) -> dict[str, int]:
    """The counts in these files; what cannot be read is left out."""
    counts = {}
    for path in paths:
        try:
            found = re.search(r"^oom_kill (\d+)$", _read(path), re.MULTILINE)
        except OSError:
            continue
        if found:
            counts[path] = int(found[1])
    return counts


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")
