"""MOUNT_HUNG: network file systems that do not answer, or whose server has gone. Each costs only itself."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import StatvfsReply
from laggard.probes.host.mount_table import Mount, read_mounts
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_DEAD = frozenset(
    os.strerror(number)
    for number in (
        errno.EIO,
        errno.ENODEV,
        errno.ENOTCONN,  # a FUSE file system whose process died
        errno.ESHUTDOWN,
        errno.EHOSTDOWN,
        errno.ETIMEDOUT,
        errno.ESTALE,
    )
)
_CLOSED = frozenset(os.strerror(number) for number in (errno.EACCES, errno.EPERM))  # a user's own FUSE mount
_MOST_SERVERS = 64
_FIX = (
    "Look after the server and the network to it. If it stays away: `umount -l` takes the mount out of the way of new "
    "processes; those that hang in it end when the server is back, or with the machine."
)


class RemoteMountThresholds(Thresholds, frozen=True):
    answer_seconds: float = 3.0
    """A busy parallel file system answers statvfs in milliseconds from its client's cache, a slow one in a second."""

    never: tuple[str, ...] = ()
    """Mount points that are not asked."""


def check(host: Host, thresholds: RemoteMountThresholds) -> Iterator[Finding | Fact]:
    mounts = read_mounts(host)
    judged = [mount for mount in mounts if mount.remote and mount.point not in thresholds.never]
    if not judged:
        raise NotApplicable(f"none of the {len(mounts)} mounts is a network file system")
    servers: dict[str, list[str]] = {}
    for mount in judged:
        servers.setdefault(mount.source, []).append(mount.point)
    if len(servers) > _MOST_SERVERS:
        raise Unknown(f"{len(servers)} servers are more than are asked at a time")
    replies = host.statvfs_replies(servers, thresholds.answer_seconds)
    riddles: list[str] = []
    for mount in judged:
        reply = replies[mount.point]
        if reply.silent_seconds or reply.error in _DEAD:
            yield _finding(mount, reply)
        elif reply.error and reply.error not in _CLOSED:
            riddles.append(f"cannot statvfs {_shown(mount.point)}: {reply.error}")
    yield Fact("asked", {_shown(mount.point): mount.kind for mount in judged})
    if riddles and not _gone(host, riddles):
        raise Unknown("; ".join(riddles))


def _finding(mount: Mount, reply: StatvfsReply) -> Finding:
    point, source = _shown(mount.point), _shown(mount.source)
    said = f"says {reply.error!r}" if reply.error else f"has not answered for {reply.silent_seconds:.0f} s"
    server = source.split(":")[0]
    return finding(
        "MOUNT_HUNG",
        point,
        f"{said} ({mount.kind}, {source})",
        evidence={
            "server": source,
            "file_system": mount.kind,
            "silent_seconds": reply.silent_seconds or None,
            "error": reply.error or None,
        },
        fix=_FIX,
        commands=(f"ping -c 3 {shlex.quote(server)}", f"umount -l {shlex.quote(point)}", "dmesg | tail -n 50"),
    )


def _gone(host: Host, riddles: list[str]) -> bool:
    """Unmounted between the list and the look."""
    still = {f"cannot statvfs {_shown(mount.point)}:" for mount in read_mounts(host)}
    return not any(riddle.startswith(tuple(still)) for riddle in riddles)


def _shown(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


PROBE: Final = Probe("mounts", check, RemoteMountThresholds(), deadline_seconds=4.5)
