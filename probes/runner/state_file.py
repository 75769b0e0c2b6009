"""Small files that one run leaves for the next, in a directory that only this user can write to. A file that another
user could have written is not read."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final

from laggard.environment import state_dir
from laggard.probes.errors import NotFound, Unknown

MAX_BYTES: Final = 4 << 20
MAX_LOCK_SECONDS: Final = 0.5
_LOCK_PAUSE_SECONDS: Final = 0.01


def read_state(name: str) -> bytes:
    """The content of the file `name`; empty where there is no such file. Raises Unknown."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with _directory(make=False) as directory, os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
            _require_private(os.fstat(file.fileno()), stat.S_ISREG, name)
            return file.read(MAX_BYTES)
    except (NotFound, FileNotFoundError):
        return b""
    except OSError as error:
        raise Unknown(f"cannot read {name}: {error.strerror}") from None


def replace_state(name: str, data: bytes) -> None:
    """Replaces the file `name` by `data`, atomically. Raises Unknown."""
    with _directory(make=True) as directory:
        _replace(directory, name, data)


@contextlib.contextmanager
def locked_state(name: str) -> Iterator[None]:
    """No other process that asks for this lock changes the file `name` meanwhile. It is waited for
    MAX_LOCK_SECONDS at most: a process that hangs with it must not hold up the others. Raises Unknown."""
    import fcntl  # few runs change a file that others change too

    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with _directory(make=True) as directory:
        try:
            descriptor = os.open(f".{name}.lock", flags, 0o600, dir_fd=directory)
        except OSError as error:
            raise Unknown(f"cannot lock {name}: {error.strerror}") from None
    try:
        until = time.monotonic() + MAX_LOCK_SECONDS
        while not _lock(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) and time.monotonic() < until:
            time.sleep(_LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _lock(flock: Callable[[int, int], None], descriptor: int, operation: int) -> bool:
    try:
        flock(descriptor, operation)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _directory(make: bool) -> Iterator[int]:
    """Opens the state directory, which only this user can write to. `make`: create it where it is missing. Raises
    Unknown; NotFound where it is missing."""
    path = state_dir(os.environ)
    try:
        if make:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"there is no {path}") from None
    except OSError as error:
        raise Unknown(f"cannot use {path}: {error.strerror}") from None
    try:
        _require_private(os.fstat(descriptor), stat.S_ISDIR, path)
        yield descriptor
    finally:
        os.close(descriptor)


def _require_private(status: os.stat_result, is_type: Callable[[int], bool], name: str) -> None:
    """Raises Unknown where `name` has another type, another owner, or may be written by others."""
    if not is_type(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise Unknown(f"{name} is not this user's alone")


def _replace(directory: int, name: str, data: bytes) -> None:
    temporary = f".{name}.{os.getpid()}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)  # left by a process that died and had this number
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(data)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise Unknown(f"cannot write {name}: {error.strerror}") from None
