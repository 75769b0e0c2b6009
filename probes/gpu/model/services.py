"""The services that hold a GPU of their own, which are no job's processes; and whether a process is one.

Any process can take any name. So a name decides only where the kernel shows that root started the process: by its uid,
by the unit of systemd that it is in, or by its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from laggard import wire
from laggard.kit.processes import parse_stat
from laggard.kit.words import lazy_pattern
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import status_words
from laggard.probes.host.virtualization import parse_cpu_list
from laggard.probes.nvml.model import Gpu, Nvml

GPU_SERVICES: Final = ("nvidia-cuda-mps", "nv-hostengine", "dcgm-exporter", "nvidia-persiste")
"""The services that hold GPUs, by their names in /proc/PID/comm, which is cut at 15 characters."""


_UNIT: Final = lazy_pattern(r"\d+:[^:]*:/system\.slice/([\w@.\\-]+)\.service(?:/.*)?")
_NVIDIAS_UNITS: Final = ("nvidia-", "dcgm", "nv-hostengine")


def is_service(read: Callable[[str], str], pid: int, names: Collection[str] = GPU_SERVICES) -> bool:
    """Whether the process is a service of one of these names. `read` returns the text of a file; empty where it cannot
    be read."""
    return _name(read, pid) in names and (
        _is_of_root(read, pid) or _is_in_its_unit(read, pid) or _is_child_of_service(read, pid, names)
    )


def _is_of_root(read: Callable[[str], str], pid: int) -> bool:
    """Whether the process's real and saved uids are root's. A program of root's that a user starts has the user's as
    its real one; a service acts under a user's for a moment."""
    uids = status_words(read, pid, "Uid")
    return len(uids) == 4 and uids[0] == uids[2] == "0"


def _is_in_its_unit(read: Callable[[str], str], pid: int) -> bool:
    """Whether systemd runs it as a service of the system that is named like it, or is NVIDIA's, under whatever account.
    Other services start users' programs: cron, the daemons of schedulers."""
    units = [found[1] for line in read(f"/proc/{pid}/cgroup").split("\n") if (found := _UNIT.fullmatch(line))]
    return any(unit.startswith((_name(read, pid), *_NVIDIAS_UNITS)) for unit in units)


def _is_child_of_service(read: Callable[[str], str], pid: int, names: Collection[str]) -> bool:
    """Whether a service of root's has started it under a user's account, as the control daemon of MPS does. Who loses
    its parent becomes a child of init, which has no such name."""
    parent = status_words(read, pid, "PPid")
    if not parent or _name(read, int(parent[0])) not in names:
        return False
    return _is_of_root(read, int(parent[0])) or _is_in_its_unit(read, int(parent[0]))


def _name(read: Callable[[str], str], pid: int) -> str:
    return read(f"/proc/{pid}/comm").strip()


RUNNING_PATH: Final = "/run/laggard/rings/running.json"
"""The path of the file on a ring that runs here. Nobody but root and the user laggard can write there."""


class RunningRing(msgspec.Struct, frozen=True):
    """`session`: of all of its processes."""

    session: int


def own_ring(host: Host) -> int | None:
    """Returns the session of the ring that runs here; None: none does."""
    try:
        return wire.decode(host.read_bytes(RUNNING_PATH), RunningRing).session
    except (Unknown, wire.WireError):
        return None


def is_of_session(host: Host, pid: int, session: int | None) -> bool:
    """Whether the process is of that session."""
    if session is None:
        return False
    try:
        return parse_stat(host.read_bytes(f"/proc/{pid}/stat")).session == session
    except (Unknown, ValueError):
        return False


class JobGpus(msgspec.Struct, frozen=True):
    gpus: tuple[Gpu, ...]
    missing: tuple[int, ...]  # device numbers that the job was given and NVML does not list


def gpus_of_job(environ: Mapping[str, str], nvml: Nvml) -> JobGpus | None:
    """Returns the GPUs of the job in whose prolog, epilog or step this process runs; None where it runs in no job, or
    where SLURM names no GPUs.

    SLURM_JOB_GPUS holds device numbers, the N of /dev/nvidiaN (gres.conf: File=/dev/nvidia[0-7]), which is NVML's minor
    number and not its index. Raises Unknown where the variable is no list of numbers.
    """
    text = environ.get("SLURM_JOB_GPUS", "")
    if not text:
        return None
    by_minor = {gpu.index if gpu.minor is None else gpu.minor: gpu for gpu in nvml.gpus}
    numbers = sorted(parse_cpu_list(text, "SLURM_JOB_GPUS"))
    return JobGpus(
        gpus=tuple(by_minor[number] for number in numbers if number in by_minor),
        missing=tuple(number for number in numbers if number not in by_minor),
    )
