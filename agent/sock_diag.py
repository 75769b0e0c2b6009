"""The kernel's sockets by sock_diag(7): who listens, and what established connections carried."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from laggard.kit.address import ip_of

MAX_SOCKETS: Final = 1 << 17

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQUEST: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_IDENTITY: Final = struct.Struct(">H46x")  # of the sockets asked for: the local port, 0 for any; the rest: any
_PORTS: Final = struct.Struct(">HH")
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_TCP_BYTES: Final = struct.Struct("=QQ")  # bytes_acked, bytes_received
_TCP_BYTES_AT: Final = 120
_SOCKET_BYTES: Final = 72
_OWNER: Final = struct.Struct("=II")  # uid, inode
_OWNER_AT: Final = 64
_ADDRESS_BYTES: Final[dict[int, int]] = {socket.AF_INET: 4, socket.AF_INET6: 16}

_BY_FAMILY: Final = 20
_ERROR, _DONE = 2, 3
_FLAGS: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INFO: Final = 2
_INFO_BIT: Final = 1 << (_INFO - 1)
_ESTABLISHED: Final = 1 << 1
_LISTEN: Final = 1 << 10


class TcpSocket(NamedTuple):
    """An established connection, and how many bytes it has carried since it was made. Addresses are in digits, an IPv4
    address within IPv6 as IPv4."""

    inode: int
    local: str
    remote: str
    local_port: int
    remote_port: int
    sent_bytes: int
    received_bytes: int


class ListeningSocket(NamedTuple):
    """A socket that listens at `address`, in digits, for the processes of the user `owner` (uid)."""

    inode: int
    address: str
    port: int
    owner: int


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Reply(Generic[T]):
    """`done`: the kernel has nothing more to say; `error`: its errno, 0 for none."""

    sockets: tuple[T, ...]
    done: bool
    error: int = 0


def request(family: int) -> bytes:
    """Returns the message that asks for all established TCP connections of AF_INET or AF_INET6, with their tcp_info."""
    return _dump(_REQUEST.pack(family, socket.IPPROTO_TCP, _INFO_BIT, _ESTABLISHED) + _IDENTITY.pack(0))


def listening_request(family: int, port: int) -> bytes:
    """Returns the message that asks for the sockets that listen at `port`."""
    return _dump(_REQUEST.pack(family, socket.IPPROTO_TCP, 0, _LISTEN) + _IDENTITY.pack(port))


def _dump(body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _FLAGS, 1, 0) + body


def parse_reply(data: bytes) -> Reply[TcpSocket]:
    """Parses one datagram of established connections. What is cut off, or of another form, is left out: no input
    raises."""
    return _parse(data, _socket)


def parse_listening(data: bytes) -> Reply[ListeningSocket]:
    """Parses one datagram of listening sockets, in the same way."""
    return _parse(data, _listening)


def _parse(data: bytes, parse_body: Callable[[bytes], Iterable[T]]) -> Reply[T]:
    found: list[T] = []
    for kind, body in _messages(data):
        if kind == _DONE:
            return Reply(tuple(found), True)
        if kind == _ERROR:
            number = struct.unpack_from("=i", body)[0] if len(body) >= 4 else -1
            return Reply(tuple(found), True, abs(number))
        if kind == _BY_FAMILY:
            found += parse_body(body)
    return Reply(tuple(found), False)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _socket(body: bytes) -> Iterator[TcpSocket]:
    if len(body) < _SOCKET_BYTES:
        return
    size = _ADDRESS_BYTES.get(body[0])
    carried = _carried(body[_SOCKET_BYTES:])
    if size is None or carried is None:
        return
    local_port, remote_port = _PORTS.unpack_from(body, 4)
    local, remote = _address(body[8 : 8 + size]), _address(body[24 : 24 + size])
    _, inode = _OWNER.unpack_from(body, _OWNER_AT)
    yield TcpSocket(inode, local, remote, local_port, remote_port, *carried)


def _listening(body: bytes) -> Iterator[ListeningSocket]:
    size = _ADDRESS_BYTES.get(body[0]) if len(body) >= _SOCKET_BYTES else None
    if size is None or 1 << body[1] != _LISTEN:
        return
    owner, inode = _OWNER.unpack_from(body, _OWNER_AT)
    yield ListeningSocket(inode, str(ipaddress.ip_address(body[8 : 8 + size])), _PORTS.unpack_from(body, 4)[0], owner)


def _carried(attributes: bytes) -> tuple[int, int] | None:
    """The bytes that the connection has carried; None where the kernel does not tell."""
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size or at + length > len(attributes):
            return None
        info = attributes[at + _ATTRIBUTE.size : at + length]
        if kind == _INFO and len(info) >= _TCP_BYTES_AT + _TCP_BYTES.size:
            sent, received = _TCP_BYTES.unpack_from(info, _TCP_BYTES_AT)
            return int(sent), int(received)
        at += (length + 3) & ~3
    return None


def _address(raw: bytes) -> str:
    return plain_address(str(ipaddress.ip_address(raw)))


def plain_address(text: str) -> str:
    """Returns an address in the form in which two are compared; empty for what is none."""
    return str(ip_of(text) or "")


_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end of a Unix socket, as the kernel noted them when they connected."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


# Asks the kernel for the TCP sockets of this network namespace. It lists those that are asked for alone: /proc/net/tcp
# costs milliseconds on a machine with much memory, whose table of connections is walked whole.

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
