"""The end of a process that is not our child: its wait status from the kernel, by a pidfd or while it is a zombie.
Standard library only."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from typing import Final, NamedTuple

from laggard.processes.stat import read_stat

_INFO: Final = struct.Struct("<QQ11Ii")  # struct pidfd_info, version 0 (include/uapi/linux/pidfd.h): mask ... exit_code
_GET_INFO: Final = 0xC000FF0B | _INFO.size << 16  # PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info); Linux 6.13
_WITH_EXIT: Final = 1 << 3  # PIDFD_INFO_EXIT; Linux 6.15, for processes that their parent has waited for


class ExitStatus(NamedTuple):
    """`code` where the process left by itself, `signal` (`SIGKILL`) where a signal ended it."""

    code: int | None = None
    signal: str = ""


def of_wait_status(status: int | None) -> ExitStatus | None:
    if status is None:
        return None
    if os.WIFSIGNALED(status):
        return ExitStatus(signal=_signal_name(os.WTERMSIG(status)))
    return ExitStatus(os.WEXITSTATUS(status))


def wait_status(pidfd: int, pid: int) -> int | None:
    """The wait status of a process that has ended. None where the kernel does not tell: of a zombie it does to root
    alone, of one that is gone from Linux 6.15 on."""
    status = zombie_status(pid, os.geteuid() == 0)
    return status if status is not None or pidfd < 0 else _status_of_pidfd(pidfd)


def zombie_status(pid: int, may_know: bool) -> int | None:
    """The wait status of a process that its parent has not waited for. None where it is no zombie any more, or where a
    0 may stand for `not permitted to know`: to know takes CAP_SYS_PTRACE."""
    stat = read_stat(pid)
    if stat is None:
        return None
    status = stat.wait_status
    if stat.state == "Z":
        return status if status or may_know else None
    return status if status and stat.is_exiting else None  # it may not be set yet


def _status_of_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info, True)
    except OSError:  # an older kernel, or not waited for yet
        return None
    mask, *_, exit_code = _INFO.unpack(info)
    return int(exit_code) if mask & _WITH_EXIT else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
