"""MOUNT_HUNG: network file systems that do not answer, or whose server has gone. One that hangs delays no other."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Collection, Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import StatvfsReply
from laggard.probes.host.mount_table import Mount, printable_path, read_mounts
from laggard.probes.probe import Fact, NotNegative, Probe, Thresholds, finding

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
_DENIED = frozenset(os.strerror(number) for number in (errno.EACCES, errno.EPERM))  # a user's own FUSE mount
_MAX_SERVERS = 64
_FIX = (
    "Check the server and the network to it. If it stays away: `umount -l` hides the mount from new processes; those "
    "that hang in it end when the server is back, or with the machine."
)


class RemoteMountThresholds(Thresholds, frozen=True):
    answer_seconds: NotNegative = 3.0
    """The time that statvfs may take. A busy parallel file system needs milliseconds, a slow one a second."""

    never: tuple[str, ...] = ()
    """Mount points that are not asked."""


def check(host: Host, thresholds: RemoteMountThresholds) -> Iterator[Finding | Fact]:
    mounts = read_mounts(host)
    judged = [mount for mount in mounts if mount.remote and mount.point not in thresholds.never]
    if not judged:
        raise NotApplicable(f"none of the {len(mounts)} mounts is a network file system")
    judged.sort(key=lambda mount: mount.of_user)  # root's first
    servers: dict[str, list[str]] = {}
    for mount in judged:
        servers.setdefault(mount.source, []).append(mount.point)
    if len({mount.source for mount in judged if not mount.of_user}) > _MAX_SERVERS:
        raise Unknown(f"{len(servers)} servers are more than are asked at a time")
    if len(servers) > _MAX_SERVERS:
        yield Fact("not_asked", f"{len(servers) - _MAX_SERVERS} file systems that users have mounted")
        servers = dict(list(servers.items())[:_MAX_SERVERS])
        judged = [mount for mount in judged if mount.source in servers]
    replies = host.statvfs_replies(servers, thresholds.answer_seconds)
    unexplained: dict[str, str] = {}  # errors by mount point
    for mount in judged:
        reply = replies[mount.point]
        if reply.silent_seconds or reply.error in _DEAD:
            yield _finding(mount, reply)
        elif reply.error and reply.error not in _DENIED:
            unexplained[mount.point] = f"cannot statvfs {printable_path(mount.point)}: {reply.error}"
    yield Fact("asked", {printable_path(mount.point): mount.fstype for mount in judged})
    if unexplained and not _all_unmounted(host, unexplained):
        raise Unknown("; ".join(unexplained.values()))


def _finding(mount: Mount, reply: StatvfsReply) -> Finding:
    point, source = printable_path(mount.point), printable_path(mount.source)
    answer = f"says {reply.error!r}" if reply.error else f"has not answered for {reply.silent_seconds:.0f} s"
    server = source.split(":")[0]
    return finding(
        "MOUNT_HUNG",
        point,
        f"{answer} ({mount.fstype}, {source})",
        evidence={
            "server": source,
            "file_system": mount.fstype,
            "silent_seconds": reply.silent_seconds or None,
            "error": reply.error or None,
        },
        fix=_FIX,
        commands=(f"ping -c 3 {shlex.quote(server)}", f"umount -l {shlex.quote(point)}", "dmesg | tail -n 50"),
    )


def _all_unmounted(host: Host, points: Collection[str]) -> bool:
    """Returns whether all these mounts ended after the mounts were listed."""
    return not any(mount.point in points for mount in read_mounts(host))


PROBE: Final = Probe("mounts", check, RemoteMountThresholds(), deadline_seconds=4.5)
