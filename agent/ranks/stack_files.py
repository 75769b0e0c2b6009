"""The files of stacks beside the rank files. They are open to their owner alone, and stand where users write: no link
is followed below the rank directory, and a file is read only where it is a small regular one of the user whose it has
to be."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from laggard.probes.host.apart import NoChild, Stopped, apart
from laggard.probes.host.reader import NoReader, ask
from laggard.stacks.fault_text import MAX_TEXT
from laggard.stacks.fault_text import SUFFIX as FAULT_SUFFIX
from laggard.stacks.kernel_side import KernelSide, NotThere, checked, read_kernel_side
from laggard.stacks.sampled import MAX_BYTES
from laggard.stacks.sampled import SUFFIX as STACKS_SUFFIX

# The file systems that users have mounted within the rank directory. One of theirs (FUSE) may answer nothing, and who
# asks it waits for ever: what is below is not touched, and the kernel's table of mounts tells where that is.

_USERS_MOUNTS_MAX_BYTES: Final = 16 << 20
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


def users_mounts(directory: str, table: str = "/proc/self/mountinfo") -> tuple[str, ...]:
    """The paths within `directory` where a file system of a user's is mounted; none where the table cannot be read."""
    try:
        with open(table, "rb") as file:
            data = file.read(_USERS_MOUNTS_MAX_BYTES)
    except OSError:
        return ()
    if b" - fuse" not in data:
        return ()
    folder = os.path.realpath(directory)
    found = (_point(line) for line in data.splitlines() if b" - fuse" in line)
    below = (point for point in found if point.startswith(f"{folder}/"))
    return tuple(sorted(directory + point[len(folder) :] for point in below))


def is_below(path: str, mounts: tuple[str, ...]) -> bool:
    return any(path == mount or path.startswith(f"{mount}/") for mount in mounts)


def _point(line: bytes) -> str:
    """The fifth field, in which a space, tab, line end and backslash are octal numbers (proc_pid_mountinfo(5))."""
    field = (line.split(b" ", 5) + [b""] * 5)[4]
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 255]), field))


NO_FOLDER: Final = "-"
"""The word for the rank directory itself, in the place of a user's folder in it."""

_FOLDER: Final = re.compile(r"[0-9]{1,10}")
_NAME: Final = re.compile(r"[1-9][0-9]{0,9}-[0-9a-f]{1,16}(\.stacks|\.fault)")
_MAX_BYTES: Final = {STACKS_SUFFIX: MAX_BYTES, FAULT_SUFFIX: MAX_TEXT}
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StackFile(NamedTuple):
    """A file's place below the rank directory. `folder`: a user's, or NO_FOLDER."""

    folder: str
    name: str


class Content(NamedTuple):
    """`changed`: the time of the last change, Unix time."""

    changed: float
    text: bytes


def is_stack_file(file: StackFile) -> bool:
    """Whether the two words name such a file, and nothing else."""
    folder = file.folder == NO_FOLDER or _FOLDER.fullmatch(file.folder)
    return bool(folder and _NAME.fullmatch(file.name))


def changed_at(directory: str, file: StackFile) -> float | None:
    """The time at which the file last changed (Unix time); None where there is none. To ask takes no right."""
    try:
        return os.lstat(_path(directory, file)).st_mtime
    except OSError:
        return None


def read_stack_file(directory: str, file: StackFile, owner: int) -> Content:
    """The file's content. Raises OSError; its strerror says what is wrong."""
    named = _NAME.fullmatch(file.name)
    if not is_stack_file(file) or named is None:
        raise OSError(errno.EINVAL, "that names no file of stacks")
    if is_below(_path(directory, file), users_mounts(directory)):
        raise OSError(errno.EINVAL, "a user's file system is mounted there")
    base = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _read_below(base, file, owner, _MAX_BYTES[named[1]])
    finally:
        os.close(base)


def _read_below(base: int, file: StackFile, owner: int, most: int) -> Content:
    folder = base if file.folder == NO_FOLDER else os.open(file.folder, _FLAGS | os.O_DIRECTORY, dir_fd=base)
    try:
        fd = os.open(file.name, _FLAGS, dir_fd=folder)
    finally:
        if folder != base:
            os.close(folder)
    with os.fdopen(fd, "rb") as opened:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if about.st_uid != owner:
            raise OSError(errno.EPERM, "it is another user's")
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes")
        return Content(about.st_mtime, opened.read(most))


def _path(directory: str, file: StackFile) -> str:
    parts = (file.name,) if file.folder == NO_FOLDER else (file.folder, file.name)
    return os.path.join(directory, *parts)


class NoSide(Exception):
    """It is not known. The text says why."""


def whole_side(owner: int, pid: int) -> KernelSide:
    """Returns all that this process may know of the main thread of the user's process. A child process reads it, which
    is killed where that does not end. Raises NoSide."""

    def read(note: Callable[[int], None]) -> bytes:
        note(pid)
        try:
            return msgspec.json.encode(read_kernel_side(pid, pid, owner))
        except NotThere:
            return b""

    try:
        answer = apart(read)
    except Stopped:
        raise NoSide("the process does not let itself be read") from None
    except NoChild as error:
        raise NoSide(str(error)) from None
    if not answer:
        raise NoSide("no process of that number is that user's")
    return _decoded(answer)


class KernelReader:
    """Reads the ranks of one answer: where one cannot be read, the others are told only as far as that needs nobody."""

    def __init__(self) -> None:
        self._is_quick = False

    def side(self, owner: int, pid: int) -> KernelSide | None:
        """Returns the place of the main thread of the user's process; None where there is none, or where it is not
        visible from here (`pid` 0)."""
        if pid <= 0:
            return None
        try:
            quick = read_kernel_side(pid, pid, owner, whole=False)
        except NotThere:
            return None
        if quick.is_whole or self._is_quick:
            return quick
        try:
            return whole_side(owner, pid) if os.geteuid() in (0, owner) else _of_reader(owner, pid)
        except NoSide:
            self._is_quick = True
            return quick


def _of_reader(owner: int, pid: int) -> KernelSide:
    """Raises NoSide."""
    try:
        return _decoded(ask(f"kernel_side {owner} {pid}"))
    except NoReader as error:
        raise NoSide(error.strerror) from None


def _decoded(answer: bytes) -> KernelSide:
    """Raises NoSide."""
    try:
        return checked(*msgspec.json.decode(answer, type=KernelSide))
    except (ValueError, msgspec.MsgspecError):
        raise NoSide("laggard's reader answers something else") from None
