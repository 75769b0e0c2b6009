"""The local mounts of a machine and the disks below them, as /proc and /sys show them now.

Sources: Linux, fs/proc_namespace.c, Documentation/ABI/stable/sysfs-block; fstab(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.kit.words import lazy_pattern
from laggard.probes.errors import or_none
from laggard.probes.host import mount_table
from laggard.probes.host.host import Host
from laggard.probes.host.mount_table import Mount
from laggard.probes.probe import matches_any

_BLOCKS: Final = "/sys/class/block"
_DISK: Final = lazy_pattern(r"/dev/((?:nvme\d+n\d+|(?:[hsv]|xv)d[a-z]+|md\d+)(?:p?\d+)?)")
_PART: Final = lazy_pattern(r"(?:n\d+)?(?:p\d+)?")
_PARTITION: Final = lazy_pattern(r"(?<=\d)p\d+$|(?<=[a-z])\d+$")
_NO_JOBS: Final = ("/boot", "/boot/*", "/efi", "/media/*", "/recovery", "/recovery/*", "/run/media/*")
"""The mount points that no job uses: what boots the machine, and sticks."""


class Storage:
    """The mounts, each with what it lies on."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._mounts = mount_table.read_mounts(host)
        self._blocks = frozenset(host.names(_BLOCKS))

    def broken(self) -> Iterator[tuple[Mount, str]]:
        """Yields the mounts that cannot be used, and why. What fstab wants writable is told by the probe `expected`."""
        for mount in self._mounts:
            disk = _DISK.fullmatch(mount.source)
            if mount.local and mount.shut_down:
                yield mount, "is shut down after an error: writes to it fail"
            elif disk and self._blocks and not self._blocks & {disk[1], _PARTITION.sub("", disk[1])}:
                yield mount, f"has lost its disk: {disk[1]} is gone from {_BLOCKS}"

    def is_read_only(self, mount: Mount) -> bool:
        """Whether the file system is, and not this mount of it alone."""
        same = (other for other in self._mounts if other.source == mount.source and mount.source.startswith("/"))
        if mount.writable or any(other.writable for other in same):
            return False
        return mount.point not in mount_table.read_writable_superblocks(self._host)

    def mount_of(self, device: str) -> Mount | None:
        """The mount whose file system lies on a disk, a partition or an NVMe controller by the kernel's name, or on one
        of its partitions and volumes. An array or several paths do without a disk: what is mounted of these is none."""
        volumes = self._volumes(device)
        for mount in self._mounts:
            if mount.local and (mount.source in volumes or _is_on(mount.source.removeprefix("/dev/"), device)):
                return mount
        if volumes or not device.startswith("dm-"):
            return None
        mapped = [mount for mount in self._mounts if mount.source.startswith("/dev/mapper/")]  # names are not recorded
        return next(filter(self.is_read_only, mapped), mapped[0] if len(mapped) == 1 else None)

    def _volumes(self, device: str) -> list[str]:
        """The paths of the volumes of device mapper on a block device, or of the one that it is."""
        host = self._host
        parts = [name for name in self._blocks if _is_on(name, device)]
        over = [name for part in parts for name in host.names(f"{_BLOCKS}/{part}/holders") if name.startswith("dm-")]
        volumes = [device] if device.startswith("dm-") else over
        single = [name for name in volumes if not host.text(f"{_BLOCKS}/{name}/dm/uuid").startswith("mpath-")]
        return [f"/dev/mapper/{text}" for name in single if (text := host.text(f"{_BLOCKS}/{name}/dm/name"))]

    def is_for_jobs(self, mount: Mount) -> bool:
        removable = self._is_removable(_PARTITION.sub("", mount.source.rpartition("/")[2]))
        return not removable and not matches_any(mount.point, _NO_JOBS)

    def is_gone(self, device: str) -> bool:
        """Whether a disk was taken out, or is a stick."""
        is_away = bool(self._blocks) and not any(_is_on(name, device) for name in self._blocks)
        return is_away or self._is_removable(device)

    def _is_removable(self, disk: str) -> bool:
        place = or_none(self._host.real_path, f"/sys/block/{disk}") or ""
        return self._host.text(f"/sys/block/{disk}/removable") == "1" or "/usb" in place


def _is_on(name: str, device: str) -> bool:
    """Whether a block device is the disk, partition or NVMe controller `device`, or on it: `nvme1n1p2`, `nvme1`."""
    rest = name[len(device) :] if name.startswith(device) else "?"
    return not rest or bool(_PART.fullmatch(rest) if device[-1:].isdigit() else rest.isdecimal())
