"""Asks the kernel of this machine what is in no file. Each answer is a value of kernel.py; each function raises OSError
where the kernel refuses.

What only some machines need is imported where it is used: ctypes and sockets are slow to import."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from laggard import wire
from laggard.probes.host.kernel import FileSystem, KernelClock, Pfc, Usage


def read_file_system(path: str) -> FileSystem:
    answer = os.statvfs(path)
    return FileSystem(
        total_bytes=answer.f_blocks * answer.f_frsize,
        free_bytes=answer.f_bfree * answer.f_frsize,
        available_bytes=answer.f_bavail * answer.f_frsize,
        inodes=answer.f_files,
        inodes_free=answer.f_ffree,
        inodes_available=answer.f_favail,
    )


def read_places(paths: Iterable[str]) -> Mapping[str, str]:
    """What is at each of `paths`: as Host.places() has it."""
    return {path: _about(path) for path in paths}


def _about(path: str) -> str:
    try:
        it = os.stat(path)
    except OSError as error:
        return error.strerror or str(error)
    device = f" {os.major(it.st_rdev)}:{os.minor(it.st_rdev)}" if stat.S_ISCHR(it.st_mode) else ""
    return stat.filemode(it.st_mode) + device


# Whose files fill a local file system: a walk that ends in half a second.

_WALK_SECONDS: Final = 0.5  # of the two that a probe has
_MAX_FILES: Final = 200_000
_BLOCK_BYTES: Final = 512  # of st_blocks (stat(2))


def read_usage(point: str) -> Usage:
    """Walks the mount point `point`, the outermost folders first. What cannot be listed is left out."""
    deadline = time.monotonic() + _WALK_SECONDS
    root = os.stat(point)
    taken: Counter[str] = Counter()
    linked: set[int] = set()
    folders, files, complete = deque([point]), 0, True
    while folders:
        if files >= _MAX_FILES or time.monotonic() > deadline:
            complete = False
            break
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in entries:
                    files += 1
                    about = entry.stat(follow_symlinks=False)
                    if about.st_dev != root.st_dev or about.st_ino in linked:
                        continue
                    if about.st_nlink > 1 and not stat.S_ISDIR(about.st_mode):
                        linked.add(about.st_ino)
                    taken[str(about.st_uid)] += about.st_blocks * _BLOCK_BYTES
                    if stat.S_ISDIR(about.st_mode):
                        folders.append(entry.path)
                    if files >= _MAX_FILES or time.monotonic() > deadline:
                        break
        except OSError:
            complete = False
    return Usage(dict(taken), complete, bool(root.st_mode & stat.S_IWOTH))


_TIMEX: Final = struct.Struct("@I4li")  # struct timex of <sys/timex.h>: modes, offset, freq, maxerror, esterror, status
_TIMEX_BYTES: Final = 256  # more than the whole structure has
_STA_NANO: Final = 0x2000  # the offset is in nanoseconds, not microseconds


def read_clock() -> KernelClock:
    """How well the kernel's clock is synchronised, as it estimates itself; of laggard's reader where a filter of system
    calls keeps this process from asking."""
    try:
        return _own_clock()
    except PermissionError as error:  # a unit's or container's filter
        from laggard.probes.host.reader import with_reader

        return wire.decode(with_reader(error, "clock"), KernelClock)


def _own_clock() -> KernelClock:
    """Asks adjtimex(2), which changes nothing, since `modes` is 0."""
    import ctypes

    answer = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(answer)
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    _, offset, _, maximum_error, estimated_error, status = _TIMEX.unpack_from(answer)
    return KernelClock(
        state=state,
        status=status,
        offset_seconds=offset / (1e9 if status & _STA_NANO else 1e6),
        maximum_error_seconds=maximum_error / 1e6,
        estimated_error_seconds=estimated_error / 1e6,
    )


# Priority flow control: Data Center Bridging over netlink, which any user may use.
#
# The request is RTM_GETDCB with DCB_CMD_IEEE_GET; the answer nests DCB_ATTR_IEEE_PFC, a struct ieee_pfc
# (include/uapi/linux/dcbnl.h, net/dcb/dcbnl.c).

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


def read_pfc(netdev: str) -> Pfc | None:
    """Priority flow control of a network device; None where its driver does not support DCB. ENODEV: there is no such
    device."""
    import socket

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(_ANSWER_SECONDS)
        netlink.send(request(netdev))
        try:
            return parse_answer(netlink.recv(1 << 16))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise


def request(netdev: str) -> bytes:
    """The netlink message that asks for the DCB attributes of `netdev`."""
    name = _attribute(_DCB_ATTR_IFNAME, netdev.encode() + b"\0")
    body = _DCBMSG.pack(0, _DCB_CMD_IEEE_GET, 0) + name
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
