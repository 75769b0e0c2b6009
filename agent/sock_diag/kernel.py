"""Asks the kernel for the TCP sockets of this network namespace. It lists those that are asked for alone: /proc/net/tcp
costs milliseconds on a machine with much memory, whose table of connections is walked whole."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final, TypeVar

from laggard.agent.sock_diag.inet_diag import (
    MAX_SOCKETS,
    ListeningSocket,
    Reply,
    TcpSocket,
    listening_request,
    parse_listening,
    parse_reply,
    request,
)

T = TypeVar("T")

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_ANSWER_SECONDS: Final = 2.0
_BUFFER: Final = 1 << 16
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def established_sockets() -> list[TcpSocket]:
    """Returns the established connections. Raises OSError where the kernel does not tell."""
    return _ask(request, parse_reply)


def listening_sockets(port: int) -> list[ListeningSocket]:
    """Returns the sockets that listen at `port`. Raises OSError where the kernel does not tell."""
    return _ask(lambda family: listening_request(family, port), parse_listening)


def _ask(message: Callable[[int], bytes], parse: Callable[[bytes], Reply[T]]) -> list[T]:
    found: list[T] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
        netlink.settimeout(_ANSWER_SECONDS)
        for family in _FAMILIES:
            netlink.send(message(family))
            done = False
            while not done:
                reply = parse(netlink.recv(_BUFFER))
                if reply.error:
                    raise OSError(reply.error, os.strerror(reply.error))
                found += reply.sockets[: MAX_SOCKETS - len(found)]
                done = reply.done
    return found
