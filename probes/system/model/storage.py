"""Local file systems, arrays of disks and NVMe controllers, as /proc and /sys show them now.

Sources: Linux, drivers/md/md.c (md_seq_show), drivers/nvme/host/sysfs.c (nvme_sysfs_show_state), fs/proc_namespace.c;
fstab(5), md(4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.kit.words import lazy_pattern
from laggard.probes.errors import or_none
from laggard.probes.host.host import Host
from laggard.probes.host.mount_table import (
    Mount,
    in_container,
    read_mounts,
    read_wanted_writable,
    read_writable_superblocks,
)
from laggard.probes.probe import matches_any

_BLOCKS: Final = "/sys/class/block"
_DISK: Final = lazy_pattern(r"/dev/((?:nvme\d+n\d+|(?:[hsv]|xv)d[a-z]+|md\d+)(?:p?\d+)?)")
_PART: Final = lazy_pattern(r"(?:n\d+)?(?:p\d+)?")
_PARTITION: Final = lazy_pattern(r"(?<=\d)p\d+$|(?<=[a-z])\d+$")
_NO_JOBS: Final = ("/boot", "/boot/*", "/efi", "/media/*", "/recovery", "/recovery/*", "/run/media/*")
"""The mount points that no job uses: what boots the machine, and sticks."""

_ARRAY: Final = lazy_pattern(r"(md\S{1,32}) : (?:in)?active (?:\([\w-]+\) )*(\w*)")
_MEMBERS: Final = lazy_pattern(r"\[\d+/\d+\] \[([U_]+)\]")
_COPIES: Final = lazy_pattern(r"(\d+) (?:near|far|offset)-copies")
_REBUILDS: Final = lazy_pattern(r"\b(?:recovery|resync|reshape) *=")
_MAY_LACK: Final = {"raid4": 1, "raid5": 1, "raid6": 2}
"""How many disks an array can do without; of raid1 all but one."""


class Array(NamedTuple):
    name: str
    level: str
    members: str
    """`U` for each disk that is up, `_` for each that is not; empty where the level has no spare disks."""
    copies: int
    rebuilds: bool

    @property
    def failed(self) -> bool:
        """Whether data are lost, or two disks are gone and the next one takes the data."""
        lacks = self.members.count("_")
        if self.level == "raid10":
            places = range(0, len(self.members), self.copies)
            return any(set(self.members[at : at + self.copies]) == {"_"} for at in places)
        may_lack = _MAY_LACK.get(self.level, len(self.members) - 1)
        return lacks > may_lack or lacks == may_lack >= 2


def read_arrays(host: Host) -> Iterator[Array]:
    """Yields the arrays of /proc/mdstat that lack a disk."""
    for text in re.split(r"\n(?=md)", host.read_if_present("/proc/mdstat")):
        head, members, copies = _ARRAY.match(text), _MEMBERS.search(text), _COPIES.search(text)
        if head and members and "_" in members[1]:
            count = int(copies[1]) if copies else 2
            yield Array(head[1], head[2], members[1], max(count, 1), bool(_REBUILDS.search(text)))


def controller_state(host: Host, name: str) -> str:
    """The state of an NVMe controller: `live`, `resetting`, `connecting`, `dead`; empty where there is none."""
    return host.text(f"/sys/class/nvme/{name}/state")


def is_remote(host: Host, name: str) -> bool:
    """Whether an NVMe controller is one of another machine, over a network."""
    return host.text(f"/sys/class/nvme/{name}/transport") in ("fc", "rdma", "tcp")


class Storage:
    """The mounts of a machine with their disks."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._mounts = read_mounts(host)
        self._blocks = frozenset(host.names(_BLOCKS))
        self._superblocks: frozenset[str] | None = None

    def broken(self) -> Iterator[tuple[Mount, str]]:
        """Yields the mounts that cannot be used, or not be written to although they should, and why."""
        wanted = frozenset[str]() if in_container(self._mounts) else read_wanted_writable(self._host)
        for mount in self._mounts:
            disk = _DISK.fullmatch(mount.source)
            if mount.local and mount.shut_down:
                yield mount, "is shut down after an error: writes to it fail"
            elif disk and self._blocks and disk[1] not in self._blocks:
                yield mount, f"has lost its disk: {disk[1]} is gone from {_BLOCKS}"
            elif mount.point in wanted and self.is_read_only(mount):
                yield mount, "is read-only, and /etc/fstab wants it writable"

    def is_read_only(self, mount: Mount) -> bool:
        """Whether the file system is, and not this mount of it alone."""
        if mount.writable:
            return False
        if self._superblocks is None:
            self._superblocks = read_writable_superblocks(self._host)
        same = (other for other in self._mounts if other.source == mount.source and mount.source.startswith("/"))
        return mount.point not in self._superblocks and not any(other.writable for other in same)

    def mount_of(self, device: str) -> Mount | None:
        """The mount whose file system lies on a disk, a partition or an NVMe controller by the kernel's name, or on one
        of its partitions and volumes. An array or several paths do without a disk: what is mounted of these is none."""
        volumes = self._volumes(device)
        found = [
            mount
            for mount in self._mounts
            if mount.local and (mount.source in volumes or _is_on(mount.source.removeprefix("/dev/"), device))
        ]
        if not found and not volumes and device.startswith("dm-"):  # a recording has no names of volumes
            found = [it for it in self._mounts if it.source.startswith("/dev/mapper/") and self.is_read_only(it)]
        return found[0] if found else None

    def _volumes(self, device: str) -> list[str]:
        """The paths of the volumes of device mapper on a block device, or that it is."""
        host = self._host
        parts = [name for name in self._blocks if _is_on(name, device)]
        over = [name for part in parts for name in host.names(f"{_BLOCKS}/{part}/holders") if name.startswith("dm-")]
        volumes = [device] if device.startswith("dm-") else over
        single = [name for name in volumes if not host.text(f"{_BLOCKS}/{name}/dm/uuid").startswith("mpath-")]
        return [f"/dev/mapper/{text}" for name in single if (text := host.text(f"{_BLOCKS}/{name}/dm/name"))]

    def is_gone(self, device: str) -> bool:
        return bool(self._blocks) and not any(_is_on(name, device) for name in self._blocks)

    def is_for_jobs(self, mount: Mount) -> bool:
        disk = _PARTITION.sub("", mount.source.rpartition("/")[2])
        return not matches_any(mount.point, _NO_JOBS) and not self.is_removable(disk)

    def is_removable(self, disk: str) -> bool:
        place = or_none(self._host.real_path, f"/sys/block/{disk}") or ""
        return self._host.text(f"/sys/block/{disk}/removable") == "1" or "/usb" in place


def _is_on(name: str, device: str) -> bool:
    """Whether a block device is the disk, partition or NVMe controller `device`, or on it: `nvme1n1p2`, `nvme1`."""
    rest = name.removeprefix(device) if name.startswith(device) else "?"
    return not rest or bool(_PART.fullmatch(rest) if device[-1:].isdigit() else rest.isdecimal())
