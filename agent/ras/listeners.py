"""Who listens at NCCL RAS's address on this machine, according to the kernel. Every process of every NCCL job of one
user does: the port is shared (SO_REUSEPORT), which Linux allows among sockets of one effective user alone."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from typing import Final, NamedTuple

_LISTEN: Final = "0A"
_DISCARD_PORT: Final = 9
_MAX_LINES: Final = 65_536  # of listening sockets, which the kernel lists before all others


class Endpoint(NamedTuple):
    """An address that somebody listens at, and one of whose listeners a connection reaches."""

    host: str
    port: int
    owner: int  # uid


class Listener(NamedTuple):
    endpoint: Endpoint
    inode: int


def find_listeners(host: str, port: int, proc_net: str = "/proc/net") -> tuple[Listener, ...]:
    """Returns the sockets that listen at `host` and `port`, a name or address of this machine. None of them where the
    name is unknown, or the kernel's tables cannot be read."""
    wanted = _addresses(host)
    found = []
    for table in ("tcp", "tcp6"):
        for address, listening_port, owner, inode in _listening(f"{proc_net}/{table}"):
            if listening_port == port and (address in wanted or ipaddress.ip_address(address).is_unspecified):
                target = min(wanted, key=lambda each: (":" in each) != (":" in address)) if wanted else address
                endpoint = Endpoint(address if address in wanted else target, port, owner)
                found.append(Listener(endpoint, inode))
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


def _listening(path: str) -> list[tuple[str, int, int, int]]:
    """Returns address, port, uid and inode of each listening socket in a table of the kernel's."""
    rows = []
    try:
        with open(path, encoding="ascii", errors="replace") as table:
            next(table, None)
            for _, line in zip(range(_MAX_LINES), table, strict=False):
                words = line.split()
                if len(words) < 10 or words[3] != _LISTEN:
                    break
                address, _, port = words[1].partition(":")
                rows.append((_address(address), int(port, 16), int(words[7]), int(words[9])))
    except (OSError, ValueError):
        return rows
    return rows


def _address(digits: str) -> str:
    """The kernel writes an address as words of four bytes, each as a number of this machine's."""
    raw = bytes.fromhex(digits)
    words = struct.unpack(f"{'<' if sys.byteorder == 'little' else '>'}{len(raw) // 4}I", raw)
    packed = struct.pack(f">{len(words)}I", *words)
    return str(ipaddress.ip_address(packed))
