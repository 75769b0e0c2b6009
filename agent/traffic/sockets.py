"""The TCP connections of processes on this machine, as the kernel tells them: sock_diag for what they carried,
/proc/PID/fd for whose they are."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Final

from laggard.agent.traffic.inet_diag import MOST_SOCKETS, TcpSocket, parse_reply, request

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_ANSWER_SECONDS: Final = 2.0
_BUFFER: Final = 1 << 16
_MOST_FILES: Final = 1 << 14
_LINK: Final = re.compile(r"socket:\[(\d{1,12})\]")


class SocketsUnknown(Exception):
    """The kernel does not tell. The text says what it refused."""


def tcp_sockets() -> dict[int, TcpSocket]:
    """Returns the established connections of this network namespace by inode. Raises SocketsUnknown."""
    found: dict[int, TcpSocket] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
            netlink.settimeout(_ANSWER_SECONDS)
            for family in (socket.AF_INET, socket.AF_INET6):
                netlink.send(request(family))
                _read_answers(netlink, found)
    except OSError as error:
        raise SocketsUnknown(f"the kernel does not tell of TCP connections: {error.strerror or error}") from None
    return found


def _read_answers(netlink: socket.socket, found: dict[int, TcpSocket]) -> None:
    while True:
        reply = parse_reply(netlink.recv(_BUFFER))
        if reply.error:
            raise OSError(reply.error, os.strerror(reply.error))
        if len(found) < MOST_SOCKETS:
            found.update((each.inode, each) for each in reply.sockets)
        if reply.done:
            return


def socket_inodes(pid: int, proc: str = "/proc") -> frozenset[int]:
    """Returns the inodes of the sockets that a process holds open. Raises SocketsUnknown where this user may not see
    them, or they are in another network namespace."""
    try:
        if os.stat(f"{proc}/{pid}/ns/net").st_ino != os.stat(f"{proc}/self/ns/net").st_ino:
            raise SocketsUnknown("the ranks have a network namespace of their own")
        names = os.listdir(f"{proc}/{pid}/fd")[:_MOST_FILES]
    except FileNotFoundError:
        return frozenset()  # it ended
    except OSError as error:
        raise SocketsUnknown(f"the ranks' connections may not be seen: {error.strerror}") from None
    inodes = set()
    for name in names:
        with contextlib.suppress(OSError):
            link = _LINK.fullmatch(os.readlink(f"{proc}/{pid}/fd/{name}"))
            if link:
                inodes.add(int(link[1]))
    return frozenset(inodes)


def read_variables(pids: Iterable[int], names: frozenset[str], proc: str = "/proc") -> Mapping[str, str]:
    """Returns the variables `names` of the first of `pids` that may be read, and nothing else of its environment."""
    for pid in pids:
        with contextlib.suppress(OSError), open(f"{proc}/{pid}/environ", "rb") as file:
            words = file.read(1 << 20).decode(errors="replace").split("\0")
            pairs = (word.partition("=") for word in words)
            return {name: value for name, _, value in pairs if name in names}
    return {}
