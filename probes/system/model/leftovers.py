"""What ended jobs left on a node of SLURM's: processes, and the memory that they and files in /dev/shm hold."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from laggard.kit.words import lazy_pattern, listed
from laggard.model import Severity
from laggard.probes.errors import or_none
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import (
    FIRST_USER,
    LivingJobs,
    living_jobs,
    pids,
    read_process,
    sockets_of_jobs,
    status_words,
)
from laggard.probes.host.virtualization import read_memory_sizes
from laggard.probes.rows import Item

FREE_RATIO: Final = 0.05
"""The share of memory below which next to nothing is left for a job that begins."""
LEFT_RATIO: Final = 0.5
"""The share of memory that leftovers may hold. With more, a node has less to give than it has lost."""

_SCOPE: Final = "/sys/fs/cgroup/system.slice/slurmstepd.scope"  # cgroup v2, and v1 with a folder for each user
_OF_USERS: Final = "/sys/fs/cgroup/freezer/slurm"
_JOB: Final = lazy_pattern(r"job_(\d+)")
_OF_SLURM: Final = lazy_pattern(r":/system\.slice/slurm")
_ARC: Final = lazy_pattern(r"^(size|c_min) +4 +(\d{1,18})$", re.MULTILINE)


def read_free(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The bytes that a job can have, with the pages that were set aside for jobs (vm.nr_hugepages), and the cache that
    ZFS gives back, and no more than the kernel promises where it promises no more than it has (overcommit_memory 2,
    overcommit-accounting.rst): of a node of SLURM's on which no step runs, as its processes show."""
    memory = read_memory_sizes(host)
    huge = memory.get("HugePages_Free", 0) // 1024 * memory.get("Hugepagesize", 0)
    free, total = memory.get("MemAvailable", memory["MemTotal"]) + huge + _arc(host), memory["MemTotal"]
    if host.text("/proc/sys/vm/overcommit_memory").strip() == "2":
        free = min(free, memory.get("CommitLimit", free) - memory.get("Committed_AS", 0))
    if free >= LEFT_RATIO * total or sockets_of_jobs(host) or not (living := living_jobs(host)).idle:
        return
    held = _held(host, living)  # few times are the processes looked at
    least = LEFT_RATIO if held >= LEFT_RATIO * total else FREE_RATIO
    says = f"is {free / 2**30:.4g} GiB: leftovers hold {held / 2**30:.4g} GiB, and no job runs"
    yield Item("free memory", free, int(least * total), says=says if least == LEFT_RATIO else "")


def _arc(host: Host) -> int:
    """The bytes of ZFS's cache above its least size, to which it shrinks where others need memory. The kernel does not
    count them as available (OpenZFS, zfs.4: zfs_arc_min)."""
    sizes = {name: int(size) for name, size in _ARC.findall(host.text("/proc/spl/kstat/zfs/arcstats"))}
    return max(0, sizes.get("size", 0) - sizes.get("c_min", 0))


def _held(host: Host, living: LivingJobs) -> int:
    """The bytes of /dev/shm, and of the processes that SLURM started and that are of no job which lives here. What
    several share counts again. A login's do not count: a launcher that comes by ssh has no step here."""
    shm = or_none(host.file_system, "/dev/shm")
    left = [pid for pid in pids(host) if _is_left(host, living, pid)]
    words = [status_words(host.text, pid, name)[:1] for pid in left for name in ("VmRSS", "VmSwap")]
    used = sum(int(kib) << 10 for word in words for kib in word if kib.isdecimal())
    return used + (shm.total_bytes - shm.free_bytes if shm else 0)


def _is_left(host: Host, living: LivingJobs, pid: int) -> bool:
    process = read_process(host, pid)
    of_slurmd = process.user >= FIRST_USER and _OF_SLURM.search(host.text(f"/proc/{pid}/cgroup"))
    return bool(of_slurmd or process.job) and living.has(host, pid) is False


def read_leftovers(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The jobs that ended and whose cgroup, which goes with the last process, still has one. A job whose prolog or
    epilog this is has none yet, or is being ended."""
    folders = (_SCOPE, *(f"{_OF_USERS}/{user}" for user in host.names(_OF_USERS)))
    jobs = {found[1] for folder in folders for name in host.names(folder) if (found := _JOB.fullmatch(name))}
    jobs -= {*sockets_of_jobs(host), host.variables().get("SLURM_JOB_ID", "")}
    for job in sorted(jobs - living_jobs(host).jobs if jobs else jobs, key=int):
        left = [pid for pid in pids(host) if read_process(host, pid).job == job]
        users = listed(sorted({str(read_process(host, pid).user) for pid in left}), 3)
        names = listed(sorted({host.text(f"/proc/{pid}/comm") for pid in left}), 3)
        says = f"has ended, and left {len(left)} of its processes (user {users}: {names})"
        yield Item(f"job {job}", 0, int(bool(left)), Severity.WARNING, says=says)
