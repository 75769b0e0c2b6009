"""The facts that the kernel knows about a process that writes a rank file: its users, its cgroup, whether it is
stopped."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MAX_BYTES: Final = 16_384
_MAX_CGROUP_LENGTH: Final = 512


class ProcessInfo(NamedTuple):
    """`uids`: the real and the effective user. `cgroup`: the path, "" where the process is in none. `stopped`: by a
    signal (SIGSTOP) or by a tracer (a debugger)."""

    uids: tuple[int, int]
    cgroup: str
    stopped: bool = False


def read_process_info(pid: int, proc: str = "/proc") -> ProcessInfo | None:
    """Reads /proc/PID/status and /proc/PID/cgroup. Returns None where the process is gone, or hidden from this user
    (mount option hidepid)."""
    try:
        status = _read(f"{proc}/{pid}/status")
        cgroups = _read(f"{proc}/{pid}/cgroup")
    except OSError:
        return None
    uids = re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE)
    if uids is None:
        return None
    stopped = re.search(r"^State:\s+[Tt]\b", status, re.MULTILINE) is not None
    return ProcessInfo((int(uids[1]), int(uids[2])), _cgroup(cgroups), stopped)


def _cgroup(lines: str) -> str:
    """Returns the path in the unified hierarchy; on hosts that still mount the old hierarchies, the deepest path of
    all."""
    paths = [line.split(":", 2)[2] for line in lines.splitlines() if line.count(":") >= 2]
    deepest = max(paths, key=lambda path: path.count("/"), default="")
    shown = deepest[:_MAX_CGROUP_LENGTH]
    if not shown.isprintable():
        shown = "".join(character if character.isprintable() else "?" for character in shown)
    return "" if shown == "/" else shown


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")
