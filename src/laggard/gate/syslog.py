"""Writes one line to the system's log, since SLURM drops the output of a prolog that passes. Never waits: a log daemon
that does not read would hold every job."""

from __future__ import annotations

import contextlib
import os
from typing import Final

_SOCKET: Final = "/dev/log"
_DAEMON_WARNING, _DAEMON_INFO = 28, 30  # facility daemon (3) * 8 + severity, RFC 5424
_MAX_BYTES: Final = 1024


def write_syslog(text: str, urgent: bool) -> None:
    """Sends `text` as a warning where `urgent`, else as information. Errors are ignored: a machine without a log daemon
    has no such socket."""
    import socket

    priority = _DAEMON_WARNING if urgent else _DAEMON_INFO
    line = f"<{priority}>laggard[{os.getpid()}]: {_job_prefix()}{text}".encode(errors="replace")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(line[:_MAX_BYTES], _SOCKET)


def _job_prefix() -> str:
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"job {job}: " if job.isascii() and job.isdecimal() else ""
