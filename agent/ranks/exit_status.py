"""The end of a process that is not our child: by the kernel's word to us, else by its word to the root reader."""

from __future__ import annotations

import os

from laggard.probes.host.reader import NoReader, ask
from laggard.processes.exit import ExitStatus, of_wait_status, wait_status

__all__ = ["ExitStatus", "read_exit_status"]


def read_exit_status(pidfd: int, pid: int) -> ExitStatus | None:
    """The status of a process that has ended. None while the kernel does not tell."""
    status = wait_status(pidfd, pid)
    if status is None and os.geteuid() != 0:
        status = _status_by_reader(pid)
    return of_wait_status(status)


def _status_by_reader(pid: int) -> int | None:
    try:
        return int(ask(f"exit_status {pid}"))
    except (NoReader, ValueError):
        return None
