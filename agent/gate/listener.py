"""The Unix socket at which prologs ask: in a folder where nobody but root and the agent can put one."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
from typing import Final

log = logging.getLogger("laggard.agent")

BACKLOG: Final = 512
_MODE: Final = 0o600  # root may ask anyway


def open_listener(path: str) -> socket.socket | None:
    """Listens at `path`, in the place of a socket that nobody listens at any more. None where that cannot be, which the
    log tells: prologs then look themselves."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        log.debug("prologs cannot ask: there is no folder %s", folder)
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if reason := _why_not(folder) or _make_room(path):
            raise OSError(0, reason)
        listener.bind(path)
        os.chmod(path, _MODE)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        log.warning("prologs cannot ask at %s: %s", path, error.strerror)
        return None
    log.info("prologs ask at %s", path)
    return listener


def _why_not(folder: str) -> str:
    """Empty where nobody else can put a socket into `folder`."""
    there = os.lstat(folder)
    if there.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to user {there.st_uid}"
    if not stat.S_ISDIR(there.st_mode) or there.st_mode & 0o022:
        return f"{folder} is no folder of the agent's alone: others may write there"
    return ""


def _make_room(path: str) -> str:
    """Removes what an agent has left at `path`. Returns why it must not be removed."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return ""
    if not stat.S_ISSOCK(there.st_mode):
        return "something else than a socket is there"
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as other:
        other.setblocking(False)
        try:
            other.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return ""
        except BlockingIOError:
            pass
    return "another agent listens there"
