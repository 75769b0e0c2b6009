"""The small file that holds acknowledgements: of one node, root's own in /etc/laggard; of a collector, its own.

It is replaced as a whole, so a reboot in the middle leaves the old one or the new one. A file that somebody else could
have written acknowledges nothing, and neither does one that is damaged: findings then count as ever.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from typing import Final

from laggard.acknowledge.matching import holding
from laggard.errors import UsageError
from laggard.wire import WireError, decode, encode
from laggard.wire.acknowledgement import Acknowledgement, AcknowledgementsDocument

MAX_ACKNOWLEDGEMENTS: Final = 1024
_MAX_BYTES: Final = 8 << 20


class KeptFileError(Exception):
    """The file cannot be used. The text says why."""


def read_kept(path: str) -> tuple[Acknowledgement, ...]:
    """Those that hold now; none where there is no file. Raises KeptFileError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KeptFileError(f"cannot read {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            raise KeptFileError(f"{path} is not root's or this user's alone: chown it, and chmod go-w")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise KeptFileError(f"{path} has more than {_MAX_BYTES} bytes")
    try:
        return holding(decode(data, AcknowledgementsDocument).acknowledgements, time.time())
    except WireError as error:
        raise KeptFileError(f"{path} is damaged: {error}") from None


def write_kept(path: str, acknowledgements: Iterable[Acknowledgement]) -> None:
    """Replaces the file. Raises KeptFileError."""
    new = f"{path}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)  # left by a process that died and had this number
        with os.fdopen(os.open(new, flags, 0o644), "wb") as file:
            file.write(encode(AcknowledgementsDocument(tuple(acknowledgements))))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise KeptFileError(f"cannot write {path}: {error.strerror}") from None


def change_kept(
    path: str, change: Callable[[tuple[Acknowledgement, ...]], tuple[Acknowledgement, ...]]
) -> tuple[Acknowledgement, ...]:
    """Replaces what the file holds by what `change` makes of it, which is returned. Two that change it wait for each
    other. Raises UsageError."""
    import fcntl  # the gate only reads

    try:
        # For this user alone: who can open a file, if only to read it, can lock it as well, and never let go of it.
        with os.fdopen(os.open(f"{path}.turn", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            changed = change(read_kept(path))
            write_kept(path, changed)
            return changed
    except PermissionError:
        raise UsageError(f"only root may change {path}: use sudo, or name a collector with --collector") from None
    except OSError as error:
        raise UsageError(f"cannot lock {path}: {error.strerror}; make its folder, or use --collector") from None
    except KeptFileError as error:
        raise UsageError(str(error)) from None
