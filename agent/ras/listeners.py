"""The process that listens at NCCL RAS's address on this machine, according to the kernel. Every process of every
NCCL job of one user does: the port is shared (SO_REUSEPORT), which Linux allows among sockets of one effective user
alone."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final, NamedTuple

from laggard.agent.sock_diag.kernel import listening_sockets

_DISCARD_PORT: Final = 9


class Endpoint(NamedTuple):
    """An address that somebody listens at, and one of whose listeners a connection reaches."""

    host: str
    port: int
    owner: int  # uid


class Listener(NamedTuple):
    endpoint: Endpoint
    inode: int


def find_listeners(host: str, port: int) -> tuple[Listener, ...]:
    """Returns the sockets that listen at `host` and `port`, a name or address of this machine. None of them where the
    name is unknown. Raises OSError where the kernel does not tell who listens."""
    listening = listening_sockets(port)
    wanted = _addresses(host) if listening else frozenset()  # mostly nobody listens: then no name is looked up
    found = []
    for each in listening:
        if each.address in wanted or ipaddress.ip_address(each.address).is_unspecified:
            other = min(wanted, key=lambda it: (":" in it) != (":" in each.address)) if wanted else each.address
            endpoint = Endpoint(each.address if each.address in wanted else other, port, each.owner)
            found.append(Listener(endpoint, each.inode))
    return tuple(found)


def is_local(host: str) -> bool:
    """Returns whether `host`, an address in digits, is one of this machine's: to itself a machine sends from that very
    address. Nothing is sent. A link-local IPv6 address, which needs a zone, is not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            return bool(probe.getsockname()[0] == host)
    except OSError:
        return False


def _addresses(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError:
        return frozenset()
