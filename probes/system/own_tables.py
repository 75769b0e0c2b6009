"""What is there of a machine, and what its own tables say must be there: fstab and mount units, firmware (SMBIOS), the
kernel's lists of processors and of a bond's links.

A file system is the amount 2 where it can be written, 1 where it can be read alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from laggard.model import Severity
from laggard.probes.errors import NotApplicable, Unknown, if_present, or_none
from laggard.probes.gpu.model.pci_devices import container_of
from laggard.probes.host.host import Host
from laggard.probes.host.mount_table import REMOTE_TYPES, Mount, in_container, printable_path, read_mounts, unescape
from laggard.probes.host.smbios import installed_memory
from laggard.probes.host.virtualization import is_virtual_machine, parse_cpu_list
from laggard.probes.probe import matches_any
from laggard.probes.rows import Wanted

READABLE: Final = 1
WRITABLE: Final = 2
_READ_ONLY_TYPES: Final = ("cramfs", "erofs", "iso9660", "squashfs", "udf")
_MEMORY_TYPES: Final = ("ramfs", "tmpfs")

_NO_JOB: Final = (
    *("/boot*", "/efi*", "/recovery*", "/media/*", "/snap/*", "/var/snap/*", "/tftpboot", "/srv/tftp*"),
    *("/var/log*", "/var/crash*", "/var/cache/*", "/var/lib/nfs/*", "/dev*", "/proc*", "/run*", "/sys*"),
)
"""Mount points without which a job runs all the same: for booting, sticks, logs, caches, and the kernel's own."""

_UNIT_FOLDERS: Final = tuple(
    f"/etc/systemd/system/{target}.target.{kind}"
    for target in ("local-fs", "remote-fs", "multi-user")
    for kind in ("wants", "requires")
)
_BY_NAME: Final = {"UUID": "by-uuid", "LABEL": "by-label", "PARTUUID": "by-partuuid", "PARTLABEL": "by-partlabel"}


def wanted_mounts(host: Host) -> Mapping[str, Wanted]:
    """The mount points of fstab(5), and of enabled mount units. Those that are mounted on demand or by hand alone
    (`noauto`) are none. Raises NotApplicable in a container, whose fstab is its image's."""
    mounts = read_mounts(host)
    if in_container(mounts) or any(mount.source == "shm" for mount in mounts) or container_of(host):
        raise NotApplicable("a container has mounts of its own")
    found: dict[str, Wanted] = {}
    for folder in _UNIT_FOLDERS:
        for name in host.names(folder):
            if name.endswith(".mount"):
                point = _unit_path(name.removesuffix(".mount"))
                found[point] = Wanted(READABLE, _severity(point))
    data = if_present(host.read_bytes, "/etc/fstab") or b""
    for point, wanted in _of_fstab(host, data.decode(errors="surrogateescape")):
        known = found.get(point, wanted)
        found[point] = Wanted(min(known.amount, wanted.amount), min(known.severity, wanted.severity, key=_rank))
    return found


def _rank(severity: Severity) -> bool:
    return severity is Severity.CRITICAL


def _of_fstab(host: Host, text: str) -> Iterator[tuple[str, Wanted]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3 or line.lstrip().startswith("#"):
            continue
        source, point, fstype, options = *words[:3], (words[3] if len(words) > 3 else "").split(",")
        if not point.startswith("/") or fstype in ("swap", "ignore") or "noauto" in options:
            continue
        point = printable_path(unescape(point).rstrip("/") or "/")
        # mount(8): `nofail` reports no error for a device that does not exist. A device that is there is wanted.
        excused = fstype in _MEMORY_TYPES or ("nofail" in options and not _is_there(host, unescape(source), fstype))
        severity = Severity.WARNING if excused else _severity(point)
        read_only = "ro" in options or fstype in _READ_ONLY_TYPES
        yield point, Wanted(READABLE if read_only else WRITABLE, severity)


def _severity(point: str) -> Severity:
    return Severity.WARNING if matches_any(point, _NO_JOB) else Severity.CRITICAL


def _is_there(host: Host, source: str, fstype: str) -> bool:
    """Whether what is to be mounted exists, as far as that can be seen without asking a server."""
    name, sign, value = source.partition("=")
    if sign and name in _BY_NAME:
        source = f"/dev/disk/{_BY_NAME[name]}/" + value.strip('"')
    if fstype in REMOTE_TYPES or not source.startswith("/dev/"):
        return True
    folder, _, last = source.rpartition("/")
    return last in host.names(folder)


def _unit_path(name: str) -> str:
    """The path that a mount unit's name stands for (systemd.unit(5))."""
    path = "/" + ("" if name == "-" else name.replace("-", "/"))
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), path)


def there_mounts(host: Host, points: Collection[str]) -> Mapping[str, int]:
    """What is mounted, by mount point; `points` also by the path that they lead to by symlinks."""
    mounts = {printable_path(mount.point): _amount(mount) for mount in read_mounts(host)}
    links = {point: or_none(host.real_path, point) or "" for point in points if point not in mounts}
    return {**mounts, **{point: mounts[path] for point, path in links.items() if path in mounts}}


def _amount(mount: Mount) -> int:
    return WRITABLE if mount.writable or mount.fstype in _READ_ONLY_TYPES else READABLE


def lasting_mounts(host: Host, items: Iterable[str]) -> Iterator[str]:
    """The mount points that a boot brings, as far as the tables show: what they ask for, and network file systems. No
    user's, no container's, and none that is mounted on demand, below or at an automounter's."""
    asked_for = wanted_mounts(host)
    mounts = read_mounts(host, all_of_a_point=True)
    automounts = tuple(mount.point for mount in mounts if mount.fstype == "autofs")
    for mount in read_mounts(host):
        on_demand = any(f"{mount.point}/".startswith(f"{point}/") for point in automounts)
        passing = on_demand or mount.of_user or mount.fstype.startswith("fuse") or matches_any(mount.point, _PASSING)
        point = printable_path(mount.point)
        if (mount.remote or point in asked_for) and not passing:
            yield point


_PASSING: Final = (*_NO_JOB, "/tmp/*", "/var/lib/kubelet/*", "/var/lib/docker/*", "/var/lib/containers/*")


# Memory.


def there_memory(host: Host, items: Collection[str]) -> Mapping[str, int]:
    """The bytes of memory that the kernel has, with those that it keeps for a crash kernel."""
    kept = host.text("/sys/kernel/kexec_crash_size")
    return {"memory": _meminfo(host)["MemTotal"] + (int(kept) if kept.isdecimal() else 0)}


def wanted_memory(host: Host) -> Mapping[str, Wanted]:
    """The bytes of all memory modules, as the firmware counts them (SMBIOS, structure 17). Raises NotFound where it
    does not say, where a hypervisor says so for it, and where the kernel was told to use less."""
    limited = any(word.startswith(("mem=", "memmap=")) for word in host.text("/proc/cmdline").split())
    total = 0 if limited or is_virtual_machine(host) else installed_memory(host)
    return {"memory": Wanted(total)} if total else {}


FREE_RATIO: Final = 0.05
"""The share of memory below which next to nothing is left for a job that begins."""


def there_free(host: Host, items: Collection[str]) -> Mapping[str, int]:
    """The bytes of memory that a job can have, and the pages that were set aside for jobs (vm.nr_hugepages)."""
    memory = _meminfo(host)
    huge = memory.get("HugePages_Free", 0) // 1024 * memory.get("Hugepagesize", 0)
    return {"free memory": memory.get("MemAvailable", memory["MemTotal"]) + huge}


def wanted_free(host: Host) -> Mapping[str, Wanted]:
    """Something to begin a job with: of a node of SLURM's on which no step runs, which is seen by its processes."""
    least = int(FREE_RATIO * _meminfo(host)["MemTotal"])
    if there_free(host, ())["free memory"] >= least:
        return {}  # most of the time; then no process is looked at
    running = {host.text(f"/proc/{pid}/comm") for pid in host.names("/proc") if pid.isdecimal()}
    return {"free memory": Wanted(least)} if "slurmd" in running and "slurmstepd" not in running else {}


def _meminfo(host: Host) -> Mapping[str, int]:
    """The numbers of /proc/meminfo, by name; those in KiB as bytes, and so are counts, which have no unit there."""
    pairs = (line.partition(":")[::2] for line in host.read("/proc/meminfo").splitlines())
    found = {name: int(words[0]) << 10 for name, rest in pairs if (words := rest.split()) and words[0].isdecimal()}
    if "MemTotal" not in found:
        raise Unknown("/proc/meminfo has no MemTotal")
    return found


# Processors.

_CPU: Final = "/sys/devices/system/cpu"


def there_processors(host: Host, items: Collection[str]) -> Mapping[str, int]:
    return {"processors": len(parse_cpu_list(host.read(f"{_CPU}/online"), f"{_CPU}/online"))}


def wanted_processors(host: Host) -> Mapping[str, Wanted]:
    """Those that the kernel has found, or, where no two threads of a core are in use, half of them. To take one offline
    is a setting, and so a warning."""
    if "maxcpus=" in host.text("/proc/cmdline"):
        return {}
    present = len(parse_cpu_list(host.read(f"{_CPU}/present"), f"{_CPU}/present"))
    off = host.text(f"{_CPU}/smt/active") == "0" or host.text(f"{_CPU}/smt/control") in ("off", "forceoff")
    return {"processors": Wanted(present // 2 if off else present, Severity.WARNING)}


# A bond's links.


def there_links(host: Host, items: Collection[str]) -> Mapping[str, int]:
    """The links of the bonds that are up, as the bonding driver sees them."""
    return {name: int(up) for name, up in _bond_links(host)}


def wanted_links(host: Host) -> Mapping[str, Wanted]:
    """All links of bonds that share the load. One of them waits for the others in `active-backup`, and may be down."""
    return {name: Wanted(1, Severity.WARNING) for name, _ in _bond_links(host)}


def _bond_links(host: Host) -> Iterator[tuple[str, bool]]:
    for bond in host.names("/proc/net/bonding"):
        first, *links = host.text(f"/proc/net/bonding/{bond}").split("Slave Interface:")
        if "active-backup" not in first:
            for link in links:
                states = re.findall(r"^MII Status: (\S+)", link, re.MULTILINE)
                yield f"{bond} {(link.split() or ['?'])[0]}", states[:1] != ["down"]
