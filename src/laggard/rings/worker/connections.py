"""The TCP connections of this rank's process, by which it shows whether a stranger has taken another rank's place."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Final

from laggard.rings.messages import Connected

_MAX_ENDS: Final = 1000
"""The most ends that are told: more have no room in a message."""


def connections() -> Connected:
    """Returns this process's own ends, and the other ends of the connections that it took."""
    ends: set[str] = set()
    listening: set[int] = set()
    others: list[tuple[int, str]] = []
    for each in _sockets():
        with each, contextlib.suppress(OSError):
            own = each.getsockname()
            ends.add(_end(own))
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.add(own[1])
            else:
                others.append((own[1], _end(each.getpeername())))
    taken = {other for port, other in others if port in listening}
    if len(ends) + len(taken) > _MAX_ENDS:
        return Connected((), ())
    return Connected(tuple(sorted(ends)), tuple(sorted(taken)))


def _sockets() -> Iterator[socket.socket]:
    """Yields a copy of each socket of TCP."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                yield found
            else:
                found.close()


def _end(name: tuple[str, int]) -> str:
    """`127.0.0.1:4711`, and the same for a socket of IPv6 that takes IPv4 too."""
    return f"{name[0].removeprefix('::ffff:')}:{name[1]}"
