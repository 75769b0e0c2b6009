"""DISK_FULL: local file systems that a job writes to and that run out of space or inodes.

Critical is one that jobs need room on: it holds a place where every user or slurmd writes, or every user may write to
it, or users' files lie there. Where a daemon alone writes, the disk is often as full as it is meant to be: a warning.
So is a disk that is full of what a living job's user has written, until the job has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Literal

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown, or_none
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import FIRST_USER, users_at_work
from laggard.probes.host.kernel import FileSystem, Usage
from laggard.probes.host.mount_table import Mount, in_container, printable_path, read_kubelet_volumes, read_mounts
from laggard.probes.probe import KERNEL, Count, Fact, Probe, Ratio, Thresholds, matches_any, say

_ROOT: Final = "0"
_NAMED_USERS: Final = 5

_NEEDED = ("/tmp", "/var/tmp", "/dev/shm", "/home", "/run", "/var/spool", "/var/lib/docker", "/var/lib/containerd")
# Places at which all jobs write, or their daemons: Filesystem Hierarchy Standard, and the daemons' defaults.
_IMAGES: Final = ("overlay", "ramfs", "rootfs", "tmpfs")
# The types of the root of a node without a disk: as full as its image, in memory.
_DAEMONS_BYTES: Final = 64 << 20
# The room that the daemons of a node need on such a root: slurmd keeps a job's script and credential, a few MiB.
_RUN_HERE: Final = ("/var/lib/docker/containers/*", "*/overlay2/*/merged", "*/containers/storage/*")
# Mount points of the containers that run on this machine: the root and the shared memory of each. Root alone may look
# into most of them. What they write lies on file systems that are judged, or in a memory limit of their own.

_OF_THIS_CONTAINER: Final = ("/dev", "/dev/termination-log", "/etc/*", "/proc/*", "/sys/*")
# The mount points that a runtime makes in each container: small tmpfs, and files whose file system is judged elsewhere.

_OWN_SHM: Final = "shm"  # the source of the /dev/shm that a runtime makes for a container


class DiskThresholds(Thresholds, frozen=True):
    """Used ratios are those of df: of the space that unprivileged processes can have. 5 and 3 % left are the thresholds
    of the node-exporter mixin (NodeFilesystemAlmostOutOfSpace and ...OutOfFiles)."""

    warning_used_ratio: Ratio = 0.95
    critical_used_ratio: Ratio = 0.97

    def __post_init__(self) -> None:
        if self.warning_used_ratio > self.critical_used_ratio:
            raise ValueError("warning_used_ratio is above critical_used_ratio: a warning comes first")

    enough_bytes: Count = 64 << 30
    """The free space with which nothing is a fault: 1 % of a 28 TB scratch disk holds several checkpoints."""

    enough_inodes: Count = 1_000_000

    never: tuple[str, ...] = ("/boot", "/boot/*", "/efi", "/run/*", "/var/lib/kubelet/pods/*")
    """Mount points that are not judged: filled once and left alone, or the sized volume of a pod, login or service."""

    critical_bytes: Count = 32 << 30
    """The free space with which nothing is critical: on a large disk a small share is enough for logs, caches and the
    checkpoint that a job in its queue writes first."""

    warning_only: tuple[str, ...] = ()
    """Mount points whose findings are warnings, since no job writes there."""

    jobs: tuple[str, ...] = ("*tmp*", "*scratch*")
    """Mount points at which jobs write, where nothing shows who does: this process may not look there."""

    filled_by_users: Literal["critical", "warning"] = "critical"
    """The severity where every user may write, and root's files are less than half of what is used. `warning`: no user
    can have a node drained by filling it, and no job is kept from a node where it will find no room."""


def check(host: Host, thresholds: DiskThresholds) -> Iterator[Finding | Fact]:
    mounts = read_mounts(host)
    yield Fact("not_checked", {printable_path(mount.point): mount.fstype for mount in mounts if mount.remote})
    judged = [mount for mount in _not_containers(mounts, thresholds.never) if mount.local and mount.writable]
    volumes = read_kubelet_volumes(host)
    judged.sort(key=lambda mount: mount.point in volumes)  # of one disk, a mount that the host has is named
    if not judged:
        raise NotApplicable(f"none of the {len(mounts)} mounts is a local file system that can be written to")
    failed: list[str] = []
    sizes: dict[str, FileSystem] = {}
    for mount in judged:
        try:
            sizes[mount.point] = host.file_system(mount.point)
        except Unknown as error:
            # The mount may have ended after the mounts were listed.
            if not isinstance(error, NotFound) or any(mount.point == other.point for other in read_mounts(host)):
                failed.append(str(error))
    ratios = {point: _used_bytes(size) for point, size in sizes.items() if size.total_bytes}
    yield Fact("used_ratio", {printable_path(point): round(ratio, 4) for point, ratio in ratios.items()})
    for mount in _distinct(judged, sizes):
        places = [place for place in _NEEDED if _holder(place, mounts) == mount.point]
        yield from _judge(host, mount, sizes[mount.point], thresholds, places, mount.point in volumes)
    if failed:
        raise Unknown("; ".join(failed))


def _not_containers(mounts: Sequence[Mount], never: tuple[str, ...]) -> list[Mount]:
    """Returns those that are not left out: by `never`, as a container's that runs here, or as this container's own."""
    inside = in_container(mounts)
    left_out = (*never, *_RUN_HERE, *(_OF_THIS_CONTAINER if inside else ()))
    return [
        mount
        for mount in mounts
        if not matches_any(mount.point, left_out) and not (inside and mount.source == _OWN_SHM)
    ]


def _distinct(mounts: Iterable[Mount], sizes: dict[str, FileSystem]) -> Iterator[Mount]:
    """Yields one mount for each file system, the outermost. Bind mounts and overlays report the numbers of the file
    system below them, to the byte. Two tmpfs with equal numbers are two file systems all the same."""
    known: set[FileSystem] = set()
    for mount in mounts:
        size = sizes.get(mount.point)
        if size is None or (mount.fstype != "tmpfs" and size in known):
            continue
        known.add(size)
        yield mount


def _holder(place: str, mounts: Iterable[Mount]) -> str:
    """Returns the mount point of the file system that the path `place` lies on."""
    above = (mount.point for mount in mounts if f"{place}/".startswith(f"{mount.point.rstrip('/')}/"))
    return max(above, key=len, default="")


def _shortages(size: FileSystem, thresholds: DiskThresholds) -> list[tuple[str, bool]]:
    """What is short: its words, and whether next to nothing is left."""
    used, inodes_used = _used_bytes(size), _used_inodes(size)
    inodes_left = size.inodes_available < thresholds.enough_inodes
    checks = [  # used ratio, its text, whether little is left, whether next to nothing is
        (
            used,
            f"{_percent(used)} used, {size.available_bytes / 2**30:.1f} GiB left",
            size.available_bytes < thresholds.enough_bytes,
            size.available_bytes < thresholds.critical_bytes,
        ),
        (inodes_used, f"{_percent(inodes_used)} of its inodes used", inodes_left, inodes_left),
    ]
    return [
        (text, nothing and ratio >= thresholds.critical_used_ratio)
        for ratio, text, little, nothing in checks
        if little and ratio >= thresholds.warning_used_ratio
    ]


def _jobs_need_room(
    mount: Mount, size: FileSystem, whose: Usage | None, places: Sequence[str], thresholds: DiskThresholds
) -> bool:
    if matches_any(mount.point, thresholds.warning_only):
        return False
    if mount.point == "/" and mount.fstype in _IMAGES and "/tmp" not in places:
        return size.available_bytes < _DAEMONS_BYTES
    if places:
        return True
    if whose is None:
        return matches_any(mount.point, thresholds.jobs)
    return whose.for_all or any(map(_is_person, whose.bytes_by_user))


def _without(users: Collection[str], size: FileSystem, whose: Usage) -> FileSystem:
    """The file system when these users' files are gone. What was not seen is theirs where all files were looked at,
    since it is deleted and open, else as much of it as of what was seen."""
    seen, theirs = sum(whose.bytes_by_user.values()), sum(whose.bytes_by_user.get(user, 0) for user in users)
    used, share = size.total_bytes - size.free_bytes, theirs / max(seen, 1)
    freed = theirs + max(0, used - seen) if whose.complete else int(used * share)
    files, free, rest = int((size.inodes - size.inodes_free) * share), size.free_bytes, size.available_bytes
    inodes = size.inodes, size.inodes_free + files, size.inodes_available + files
    return FileSystem(size.total_bytes, free + freed, rest + freed, *inodes)


def _judge(
    host: Host, mount: Mount, size: FileSystem, thresholds: DiskThresholds, places: Sequence[str], of_kubelet: bool
) -> Iterator[Finding]:
    """`places`: those of _NEEDED that lie there. `of_kubelet`: the mount is this pod's folder of the kubelet's disk,
    and has another name on the node."""
    short = _shortages(size, thresholds)
    if not short:
        return
    whose = None if of_kubelet else or_none(host.usage, mount.point)  # a recording may lack it
    critical = any(is_critical for _, is_critical in short)
    critical = critical and (of_kubelet or _jobs_need_room(mount, size, whose, places, thresholds))
    by_users = whose is not None and _is_filled_by_users(whose, size)
    if thresholds.filled_by_users == "warning" and by_users:
        critical = False
    at_work = [user for user in users_at_work(host) if user in whose.bytes_by_user] if critical and whose else []
    waits = False
    if at_work and whose:
        waits = not any(is_critical for _, is_critical in _shortages(_without(at_work, size, whose), thresholds))
    from shlex import quote  # few gates have anything to quote

    point, who = printable_path(mount.point), _who(whose, size)
    texts = [text for text, _ in short] + (
        [f"the kubelet's disk, where {point} of this pod lies"] if of_kubelet else []
    )
    if waits:
        texts.append(f"until the jobs of user {', '.join(at_work)} end")
    evidence = {
        "file_system": mount.fstype,
        "used_ratio": round(_used_bytes(size), 4),
        "available_bytes": size.available_bytes,
        "inodes_used_ratio": round(_used_inodes(size), 4),
        "inodes_available": size.inodes_available,
        **({"bytes_by_user": _largest(whose), "all_files_seen": whose.complete} if whose else {}),
    }
    kind = "kubelet_full" if of_kubelet else "tmpfs_full" if mount.fstype == "tmpfs" else "disk_full"
    severity = Severity.CRITICAL if critical and not waits else Severity.WARNING
    action = "USER" if by_users or waits or _is_person(who) else ""
    device, told = printable_path(mount.source) if of_kubelet else point, _summary(texts, who)
    yield say("system", kind, device, evidence, severity, told=told, action=action, quoted=quote(point))


def _is_person(user: str) -> bool:
    return user.isdecimal() and int(user) >= FIRST_USER


def _largest(usage: Usage) -> dict[str, int]:
    """The users with the most, the largest first."""
    return dict(sorted(usage.bytes_by_user.items(), key=lambda item: -item[1])[:_NAMED_USERS])


def _who(usage: Usage | None, size: FileSystem) -> str:
    """The user, other than root, whose files are half of what is used, or more; empty where there is none."""
    half = (size.total_bytes - size.free_bytes) / 2
    users = usage.bytes_by_user if usage else {}
    return next((user for user, taken in users.items() if user != _ROOT and taken >= half > 0), "")


def _summary(texts: Sequence[str], user: str) -> str:
    """The texts with the user near the beginning, since SLURM shows little of a reason."""
    first, comma, rest = texts[0].partition(",")
    named = f"{first} (most by user {user}){comma}{rest}" if user else texts[0]
    return "; ".join((named, *texts[1:]))


def _is_filled_by_users(usage: Usage, size: FileSystem) -> bool:
    """Files that are not seen count as the users': a file that is deleted and still open is how one would hide it."""
    return usage.for_all and 2 * usage.bytes_by_user.get(_ROOT, 0) < size.total_bytes - size.free_bytes


def _used_bytes(size: FileSystem) -> float:
    return _ratio(size.total_bytes - size.free_bytes, size.available_bytes)


def _used_inodes(size: FileSystem) -> float:
    return _ratio(size.inodes - size.inodes_free, size.inodes_available)


def _ratio(used: int, available: int) -> float:
    return used / (used + available) if used + available > 0 else 0.0


def _percent(ratio: float) -> str:
    return f"{int(ratio * 100)} %"  # rounded down: only a full one is at 100 %


PROBE: Final = Probe("disks", check, DiskThresholds(), group=KERNEL)
