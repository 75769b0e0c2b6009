"""The services that hold a GPU of their own, which are no job's processes."""

from __future__ import annotations

from typing import Final

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host

GPU_SERVICES: Final = ("nvidia-cuda-mps", "nv-hostengine", "dcgm-exporter", "nvidia-persiste")
"""The services that hold GPUs, by their names in /proc/PID/comm, which is cut at 15 characters."""


def process_name(host: Host, pid: int) -> str:
    """Returns the process's name; empty if it is in another PID namespace, or has just ended."""
    try:
        return host.read(f"/proc/{pid}/comm").strip()
    except Unknown:
        return ""
