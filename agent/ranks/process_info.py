"""What the kernel says of a process that wrote a rank file."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MOST_BYTES: Final = 16_384
_CGROUP_LIMIT: Final = 512
_SLURM_JOB: Final = re.compile(r"/job_(\d+)(?:/|$)")


class Process(NamedTuple):
    """`uids`: the real and the effective one. `cgroup`: its path, "" where it is in none. `stopped`: by a signal, or by
    who traces it."""

    uids: tuple[int, int]
    cgroup: str
    stopped: bool = False


def look_at(pid: int, proc: str = "/proc") -> Process | None:
    """None where the process is gone, or hidden from us (hidepid)."""
    try:
        status = _read(f"{proc}/{pid}/status")
        groups = _read(f"{proc}/{pid}/cgroup")
    except OSError:
        return None
    uids = re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE)
    if uids is None:
        return None
    stopped = re.search(r"^State:\s+[Tt]\b", status, re.MULTILINE) is not None
    return Process((int(uids[1]), int(uids[2])), _cgroup(groups), stopped)


def slurm_job(cgroup: str) -> str | None:
    """The SLURM job that a process runs in, which slurmd writes into its cgroup's path and a user cannot."""
    found = _SLURM_JOB.search(cgroup)
    return found[1] if found else None


def _cgroup(lines: str) -> str:
    """The unified hierarchy's path; on hosts that still mount the old ones, the deepest of all."""
    paths = [line.split(":", 2)[2] for line in lines.splitlines() if line.count(":") >= 2]
    deepest = max(paths, key=lambda path: path.count("/"), default="")
    shown = "".join(character if character.isprintable() else "?" for character in deepest[:_CGROUP_LIMIT])
    return "" if shown == "/" else shown


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")
