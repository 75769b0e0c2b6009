"""The files of stacks beside the rank files. They are open to their owner alone, and stand where users write: no link
is followed below the rank directory, and a file is read only where it is a small regular one of the user whose it has
to be."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Final, NamedTuple

from laggard.agent.ranks.users_mounts import is_below, users_mounts
from laggard.stacks.fault_text import MAX_TEXT
from laggard.stacks.fault_text import SUFFIX as FAULT_SUFFIX
from laggard.stacks.sampled import MAX_BYTES
from laggard.stacks.sampled import SUFFIX as STACKS_SUFFIX

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
