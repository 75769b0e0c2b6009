"""How a process ended that is not our child: its wait status from the kernel, by a pidfd or while it is a zombie."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from typing import Final, NamedTuple

from laggard.probes.host.reader import NoReader, ask

_INFO: Final = struct.Struct("<QQ11Ii")  # struct pidfd_info, version 0 (include/uapi/linux/pidfd.h): mask ... exit_code
_GET_INFO: Final = 0xC000FF0B | _INFO.size << 16  # PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info); Linux 6.13
_WITH_EXIT: Final = 1 << 3  # PIDFD_INFO_EXIT; Linux 6.15, for processes that their parent has waited for
_EXIT_CODE_FIELD: Final = 49  # of those after the name in /proc/PID/stat, from 0


class ExitStatus(NamedTuple):
    """`code` where the process left by itself, `signal` (`SIGKILL`) where a signal ended it."""

    code: int | None = None
    signal: str = ""


def read_exit_status(pidfd: int, pid: int) -> ExitStatus | None:
    """The status of a process that has ended. None while the kernel does not tell: a zombie tells it to root alone, and
    one that is gone from Linux 6.15 on."""
    status = zombie_status(pid, os.geteuid() == 0)
    if status is None:
        status = _status_of_pidfd(pidfd)
    if status is None and os.geteuid() != 0:
        status = _status_by_reader(pid)
    if status is None:
        return None
    if os.WIFSIGNALED(status):
        return ExitStatus(signal=signal_name(os.WTERMSIG(status)))
    return ExitStatus(os.WEXITSTATUS(status))


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _status_of_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info, True)
    except OSError:  # an older kernel, or not waited for yet
        return None
    mask, *_, exit_code = _INFO.unpack(info)
    return int(exit_code) if mask & _WITH_EXIT else None


def _status_by_reader(pid: int) -> int | None:
    try:
        return int(ask(f"exit_status {pid}"))
    except (NoReader, ValueError):
        return None


def zombie_status(pid: int, may_know: bool) -> int | None:
    """The wait status of a process that its parent has not waited for. None where it is no zombie any more, or where a
    0 may stand for `not permitted to know`: to know takes CAP_SYS_PTRACE."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read(4096).rpartition(b")")[2].split()
        status = int(fields[_EXIT_CODE_FIELD - 1])
    except (OSError, ValueError, IndexError):
        return None
    return status if state == b"Z" and (status or may_know) else None
