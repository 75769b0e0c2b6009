"""The services that hold a GPU of their own, which are no job's processes; and whether a process is one.

Any process can take any name. So a name decides only where the kernel shows that root started the process: by its uid,
by the unit of systemd that it is in, or by its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.text.lazy_pattern import lazy_pattern

GPU_SERVICES: Final = ("nvidia-cuda-mps", "nv-hostengine", "dcgm-exporter", "nvidia-persiste")
"""The services that hold GPUs, by their names in /proc/PID/comm, which is cut at 15 characters."""


_UNIT: Final = lazy_pattern(r"\d+:[^:]*:/system\.slice/([\w@.\\-]+)\.service(?:/.*)?")
_NVIDIAS_UNITS: Final = ("nvidia-", "dcgm", "nv-hostengine")


def process_name(host: Host, pid: int) -> str:
    """Returns the process's name; empty if it is in another PID namespace, or has just ended."""
    try:
        return host.read(f"/proc/{pid}/comm").strip()
    except Unknown:
        return ""


def is_service(host: Host, pid: int, names: Collection[str] = GPU_SERVICES) -> bool:
    """Whether the process is a service of one of these names."""
    return is_service_by(lambda path: _read(host, path), pid, names)


def is_service_by(read: Callable[[str], str], pid: int, names: Collection[str] = GPU_SERVICES) -> bool:
    """The same. `read` returns the text of a file; empty where it cannot be read."""
    return _name(read, pid) in names and (
        _is_of_root(read, pid) or _is_in_its_unit(read, pid) or _is_child_of_service(read, pid, names)
    )


def _is_of_root(read: Callable[[str], str], pid: int) -> bool:
    """Whether the process's real and saved uids are root's. A program of root's that a user starts has the user's as
    its real one; a service acts under a user's for a moment."""
    uids = _status(read, pid, "Uid")
    return len(uids) == 4 and uids[0] == uids[2] == "0"


def _is_in_its_unit(read: Callable[[str], str], pid: int) -> bool:
    """Whether systemd runs it as a service of the system that is named like it, or is NVIDIA's, under whatever account.
    Other services start users' programs: cron, the daemons of schedulers."""
    units = [found[1] for line in read(f"/proc/{pid}/cgroup").split("\n") if (found := _UNIT.fullmatch(line))]
    return any(unit.startswith((_name(read, pid), *_NVIDIAS_UNITS)) for unit in units)


def _is_child_of_service(read: Callable[[str], str], pid: int, names: Collection[str]) -> bool:
    """Whether a service of root's has started it under a user's account, as the control daemon of MPS does. Who loses
    its parent becomes a child of init, which has no such name."""
    parent = _status(read, pid, "PPid")
    if not parent or _name(read, int(parent[0])) not in names:
        return False
    return _is_of_root(read, int(parent[0])) or _is_in_its_unit(read, int(parent[0]))


def _name(read: Callable[[str], str], pid: int) -> str:
    return read(f"/proc/{pid}/comm").strip()


def _status(read: Callable[[str], str], pid: int, field: str) -> list[str]:
    """The words of a line of the process's status. The name, which stands above, has its newlines escaped there."""
    lines = read(f"/proc/{pid}/status").split("\n")
    return next((words.split() for key, _, words in (line.partition(":") for line in lines) if key == field), [])


def _read(host: Host, path: str) -> str:
    try:
        return host.read(path)
    except Unknown:
        return ""
