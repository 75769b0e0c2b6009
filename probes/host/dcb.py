"""Asks the kernel for priority flow control: Data Center Bridging over netlink, which any user may use.

The request is RTM_GETDCB with DCB_CMD_IEEE_GET; the answer nests DCB_ATTR_IEEE_PFC, a struct ieee_pfc
(include/uapi/linux/dcbnl.h, net/dcb/dcbnl.c).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

from laggard.probes.host.kernel import Pfc

_RTM_GETDCB: Final = 78
_NLM_F_REQUEST: Final = 1
_NLMSG_ERROR: Final = 2
_DCB_CMD_IEEE_GET: Final = 21
_DCB_ATTR_IFNAME: Final = 1
_DCB_ATTR_IEEE: Final = 13
_DCB_ATTR_IEEE_PFC: Final = 2
_TYPE_MASK: Final = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_DCBMSG: Final = struct.Struct("=BBH")
_ATTRIBUTE: Final = struct.Struct("=HH")  # length with this header, type
_ANSWER_SECONDS: Final = 1.0


def read_pfc(netdev: str) -> Pfc:
    """Priority flow control of the network device `netdev`. Raises OSError: EOPNOTSUPP where its driver does not
    support DCB, ENODEV where there is no such device."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(_ANSWER_SECONDS)
        netlink.send(request(netdev))
        return parse_answer(netlink.recv(1 << 16))


def request(netdev: str) -> bytes:
    """The netlink message that asks for the DCB attributes of `netdev`."""
    name = _attribute(_DCB_ATTR_IFNAME, netdev.encode() + b"\0")
    body = _DCBMSG.pack(socket.AF_UNSPEC, _DCB_CMD_IEEE_GET, 0) + name
    return _HEADER.pack(_HEADER.size + len(body), _RTM_GETDCB, _NLM_F_REQUEST, 1, 0) + body


def parse_answer(data: bytes) -> Pfc:
    """The values of struct ieee_pfc in the netlink message `data`. Raises OSError: with the kernel's reason where it
    refused, EOPNOTSUPP where the answer holds no PFC, EBADMSG where `data` is no such answer."""
    if len(data) < _HEADER.size + _DCBMSG.size:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
    length, kind = _HEADER.unpack_from(data)[:2]
    if kind == _NLMSG_ERROR:
        number = -int(struct.unpack_from("=i", data, _HEADER.size)[0])
        raise OSError(number or errno.EBADMSG, os.strerror(number or errno.EBADMSG))
    for ieee_type, ieee in _attributes(data[_HEADER.size + _DCBMSG.size : length]):
        if ieee_type == _DCB_ATTR_IEEE:
            for pfc_type, pfc in _attributes(ieee):
                if pfc_type == _DCB_ATTR_IEEE_PFC and len(pfc) >= 2:
                    return Pfc(enabled=pfc[1], capable=pfc[0])  # struct ieee_pfc: pfc_cap, pfc_en, ...
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length % 4)
