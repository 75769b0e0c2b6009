"""The safety of the rank directory: whether users can harm one another in it, and what an agent that runs as root does
about it."""

from __future__ import annotations

import os
import stat

from laggard.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.rankfile.directory import SHARED_MODE

HOW = "as deploy/systemd/tmpfiles.d/laggard.conf does"


def secure(directory: str) -> str:
    """Makes the rank directory root's, with mode 1777, where this process may and nobody chose another one: the default
    directories are created or taken over. Returns a line that warns where the directory is not safe; else nothing."""
    if os.geteuid() == 0 and directory in (SHARED_RANK_DIR, FALLBACK_RANK_DIR):
        try:
            _take_over(directory)
        except OSError as error:
            return f"cannot make {directory} root's, with mode 1777: {error.strerror}; create it {HOW}"
    return warning(directory)


def warning(directory: str) -> str:
    """The things that are not safe about the directory as it is; empty where there are none."""
    try:
        about = os.stat(directory)
    except FileNotFoundError:
        return (
            f"the rank directory {directory} does not exist: no rank is seen before one creates it, and its user can "
            f"then remove the other users' files; create it {HOW}"
        )
    except OSError as error:
        return f"the rank directory {directory} cannot be read: {error.strerror}"
    if about.st_uid not in (0, os.geteuid()):
        return (
            f"the rank directory {directory} belongs to user {about.st_uid}, who can remove other users' files: "
            f"make it root's {HOW}"
        )
    if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
        return f"in the rank directory {directory} each user can remove the others' files: chmod 1777 {directory}"
    return ""


def _take_over(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != 0:
            os.fchown(fd, 0, 0)
        if stat.S_IMODE(os.fstat(fd).st_mode) != SHARED_MODE:  # in a pod it is right already, and mounted read-only
            os.fchmod(fd, SHARED_MODE)
    finally:
        os.close(fd)
