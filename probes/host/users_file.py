"""A file that a user's process has named, read by a process that may read more than that user.

The user chooses the path, so it may be a FIFO, whose opening waits for ever, a device, whose opening does something, or
a file that the user may not read: the path is first held without being opened, and what it leads to is judged by what
is held. A file of the kernel (/proc/kmsg) has no length, and reading one may take away what others wait for.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Final, NamedTuple

from laggard.text.lazy_pattern import lazy_pattern

MAX_BYTES: Final = 1 << 18
_STATUS_BYTES: Final = 16_384
_NUMBERS: Final = lazy_pattern(r"^(Uid|Gid|Groups):([\d\t ]*)$", re.MULTILINE)


class Credentials(NamedTuple):
    """The user who started a process: its real user, and its groups."""

    uid: int
    gids: frozenset[int]


def read_credentials(pid: str, proc: str = "/proc") -> Credentials:
    """The credentials of the process `pid`. Raises OSError."""
    with open(f"{proc}/{pid}/status", "rb") as file:
        status = file.read(_STATUS_BYTES).decode(errors="replace")
    numbers = {name: words.split() for name, words in _NUMBERS.findall(status)}
    try:
        gids = frozenset(map(int, (*numbers["Gid"][:1], *numbers["Groups"])))
        return Credentials(int(numbers["Uid"][0]), gids)
    except (KeyError, IndexError):
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH)) from None


def read_users_file(path: str, user: Credentials) -> bytes:
    """The content, at most MAX_BYTES of it, of a regular file that `user` may read by its mode. Raises OSError."""
    held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        about = os.fstat(held)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EPERM, "it is no regular file")
        if not _may_read(about, user):
            raise OSError(errno.EACCES, "its user may not read it")
        if not about.st_size:
            return b""
        with open(f"/proc/self/fd/{held}", "rb", opener=_without_waiting) as file:
            return file.read(MAX_BYTES)
    finally:
        os.close(held)


def _may_read(about: os.stat_result, user: Credentials) -> bool:
    """Decides as the kernel does (path_resolution(7)), for users other than root by the mode alone."""
    if user.uid in (0, about.st_uid):
        return user.uid == 0 or bool(about.st_mode & stat.S_IRUSR)
    return bool(about.st_mode & (stat.S_IRGRP if about.st_gid in user.gids else stat.S_IROTH))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
