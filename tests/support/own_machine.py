"""A machine on which laggard is used: what is held there of its rings, jobs and incidents is none of the tests'."""

import ctypes
import os
from collections.abc import Iterable
from typing import Final

STATE: Final = ("/run/laggard", "/var/lib/laggard", "/dev/shm/laggard")

_NEW_MOUNTS: Final = 0x00020000  # CLONE_NEWNS
_PRIVATE: Final = 0x00004000 | 0x00040000  # MS_REC | MS_PRIVATE


def hide_state(folders: Iterable[str] = STATE) -> bool:
    """Has this process, and all that it starts, see empty folders in the place of the machine's own, and leaves the
    machine's as they are. Whether it could: root can, by a mount namespace; without it, tests see what is there."""
    there = [folder for folder in folders if os.path.isdir(folder)]
    if not there:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, _PRIVATE, None):
        return False
    return not any(libc.mount(b"tmpfs", each.encode(), b"tmpfs", 0, b"mode=1777") for each in there)
