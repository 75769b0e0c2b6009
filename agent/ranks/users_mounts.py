"""The file systems that users have mounted within the rank directory. One of theirs (FUSE) may answer nothing, and who
asks it waits for ever: what is below is not touched, and the kernel's table of mounts tells where that is."""

from __future__ import annotations

import os
import re
from typing import Final

_MAX_BYTES: Final = 16 << 20
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


def users_mounts(directory: str, table: str = "/proc/self/mountinfo") -> tuple[str, ...]:
    """The paths within `directory` where a file system of a user's is mounted; none where the table cannot be read."""
    try:
        with open(table, "rb") as file:
            data = file.read(_MAX_BYTES)
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
