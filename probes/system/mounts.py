"""MOUNT_HUNG: network file systems that do not answer, or whose server has gone. One that hangs delays no other.

What root has mounted for all is for the jobs, of whatever type and wherever it is: critical. What a user or a pod has
mounted is a warning: a user whose sshfs died must not take a node out of service. So is what its mount says of itself:
one below an automount was asked for by somebody and concerns nobody else, a soft one gives up and returns an error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from laggard.model import Finding, ProbeResult, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import StatvfsReply
from laggard.probes.host.mount_table import Mount, printable_path, read_homes, read_mounts
from laggard.probes.nvml.model import Hang
from laggard.probes.probe import Fact, NotNegative, Probe, ProbeGroup, Thresholds, matches_any, say

_DEAD = frozenset(
    os.strerror(getattr(errno, name))  # ENOTCONN: a FUSE file system whose process died
    for name in ("EIO", "ENODEV", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN", "ETIMEDOUT", "ESTALE")
)
_DENIED = frozenset(os.strerror(number) for number in (errno.EACCES, errno.EPERM))  # a user's own FUSE mount
_OF_PODS: Final = ("/run/*", "/var/lib/containers/*", "/var/lib/docker/*", "*/kubelet/*")
"""Mount points of pods and of their volumes, those of CSI drivers among them, and of logins."""

_MAX_SERVERS = 64


class RemoteMountThresholds(Thresholds, frozen=True):
    answer_seconds: NotNegative = 3.0
    """The time that statvfs may take. A busy parallel file system needs milliseconds, a slow one a second."""

    never: tuple[str, ...] = ()
    """Mount points that are not asked."""

    jobs: tuple[str, ...] = ("/home", "/home/*")
    """Mount points that each job needs, also where they are mounted soft or by an automounter. The homes of /etc/passwd
    count as well."""


def check(host: Host, thresholds: RemoteMountThresholds) -> Iterator[Finding | Fact]:
    judged = _remote(host, thresholds)
    judged.sort(key=lambda mount: mount.of_user)  # root's first
    servers: dict[str, list[str]] = {}
    for mount in judged:
        servers.setdefault(_server(mount), []).append(mount.point)
    if len({_server(mount) for mount in judged if not mount.of_user}) > _MAX_SERVERS:
        raise Unknown(f"{len(servers)} servers are more than are asked at a time")
    if len(servers) > _MAX_SERVERS:
        yield Fact("not_asked", f"{len(servers) - _MAX_SERVERS} file systems that users have mounted")
        servers = dict(list(servers.items())[:_MAX_SERVERS])
        judged = [mount for mount in judged if _server(mount) in servers]
    replies = host.statvfs_replies(servers, partial(query_statvfs, host, servers, thresholds.answer_seconds))
    automounts = tuple(f"{mount.point}/*" for mount in read_mounts(host) if mount.fstype == "autofs")
    needed = (*thresholds.jobs, *read_homes(host))
    unexplained: dict[str, str] = {}  # errors by mount point
    for mount in judged:
        reply = replies[mount.point]
        if reply.silent_seconds or reply.error in _DEAD:
            yield _finding(mount, reply, _why_no_jobs(mount, needed, automounts))
        elif reply.error and reply.error not in _DENIED:
            unexplained[mount.point] = f"cannot statvfs {printable_path(mount.point)}: {reply.error}"
    yield Fact("asked", {printable_path(mount.point): mount.fstype for mount in judged})
    # Not where all these mounts ended after the mounts were listed.
    if unexplained and any(mount.point in unexplained for mount in read_mounts(host)):
        raise Unknown("; ".join(unexplained.values()))


def _remote(host: Host, thresholds: RemoteMountThresholds) -> list[Mount]:
    mounts = read_mounts(host)
    judged = [mount for mount in mounts if mount.remote and mount.point not in thresholds.never]
    if not judged:
        raise NotApplicable(f"none of the {len(mounts)} mounts is a network file system")
    return judged


def _server(mount: Mount) -> str:
    """The name under which the server is asked. A user gives a FUSE file system whatever name he likes, also that of
    the filer, and its silence must not count as the filer's."""
    return f"{mount.source} of a user" if mount.of_user else mount.source


def _why_no_jobs(mount: Mount, needed: Iterable[str], automounts: Iterable[str]) -> str:
    """Returns why no job of others suffers; empty for a mount that jobs need. Only root can mount other file systems
    than FUSE's. Of these the kernel writes down which user mounted one, and whether others may use it (fuse.rst)."""
    if mount.of_user:
        return "a user's own"
    if matches_any(mount.point, _OF_PODS):
        return "a pod's"
    of_fuse = mount.fstype.startswith("fuse")
    if of_fuse and mount.point.startswith("/home/"):
        return "in a user's home"
    if matches_any(mount.point, needed):
        return ""
    if of_fuse and "allow_other" not in mount.options:
        return "for root alone"
    if matches_any(mount.point, automounts):
        return "mounted for whoever asked"
    return "mounted soft" if {"soft", "softerr"} & {*mount.options} else ""  # nfs(5)


def _finding(mount: Mount, reply: StatvfsReply, why: str) -> Finding:
    from shlex import quote  # few gates have anything to quote

    point, source = printable_path(mount.point), printable_path(mount.source)
    answer = f"says {reply.error!r}" if reply.error else f"has not answered for {reply.silent_seconds:.0f} s"
    server = source.split(":")[0]
    told = f"{answer} ({mount.fstype}, {source}" + (f"; {why})" if why else ")")
    evidence = {"server": source, "silent_seconds": reply.silent_seconds or None, "error": reply.error or None}
    severity = Severity.WARNING if why else Severity.CRITICAL
    return say("system", "mount_hung", point, evidence, severity, told=told, server=quote(server), point=quote(point))


# Asks the mount points with a deadline: a dead file server is not waited for, since each server is asked by a process
# of its own, a group of probes. Where one survives SIGKILL the runner starts no second one.

_SILENT: Final = "silent_seconds"


def query_statvfs(host: Host, points: Mapping[str, Sequence[str]], seconds: float) -> dict[str, StatvfsReply]:
    """The replies by mount point, within `seconds`. `points`: the mount points by server. Where a server gives no
    answer for a mount point, the points after it are not asked."""
    groups = {server: ProbeGroup(f"statvfs {server}", seconds) for server in points}
    probes = [
        Probe(point, partial(_ask, point, seconds), Thresholds(), group=groups[server], on_hang=_silence)
        for server, of_server in points.items()
        for point in of_server
    ]
    report = host.run(probes, deadline_seconds=seconds)

    def reply(result: ProbeResult) -> StatvfsReply:
        silent = [report.findings[place].evidence[_SILENT] for place in result.findings]
        error = report.facts.get(result.name, {}).get("error", result.unknown)
        return StatvfsReply(silent_seconds=silent[0]) if silent else StatvfsReply(error=error)

    return {result.name: reply(result) for result in report.probes}


def _ask(point: str, seconds: float, host: Host, _: Thresholds) -> Iterator[Fact]:
    if host.watchdog:
        host.watchdog.announce(f"statvfs {point}", seconds)
    try:
        os.statvfs(point)
        yield Fact("error", "")
    except OSError as error:
        yield Fact("error", error.strerror or str(error))


def _silence(hang: Hang) -> Finding:
    """What carries the time for which the server has been silent."""
    return say("system", "mount_hung", hang.call, {_SILENT: max(hang.seconds, hang.limit_seconds)}, told="hangs")


PROBE: Final = Probe("mounts", check, RemoteMountThresholds(), deadline_seconds=4.5, needs=_remote)
