"""What is there of a machine, and what its own tables say must be there: fstab, the firmware's (SMBIOS), the kernel's
of processors and of a bond's links, and what slurm.conf tells the scheduler of this node.

A file system is the amount 2 where it can be written, 1 where it can be read alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from laggard.kit.words import lazy_pattern
from laggard.model import Severity
from laggard.probes.errors import NotApplicable, if_present, or_none
from laggard.probes.gpu.model.pci_devices import container_of, exists, find_nvidia_devices, gpu_files
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import CONFIGURATIONS, declared_numbers, living_jobs, pids, slurm_setting
from laggard.probes.host.mount_table import REMOTE_TYPES, Mount, in_container, printable_path, read_mounts, unescape
from laggard.probes.host.virtualization import installed_memory, is_virtual_machine, parse_cpu_list, read_memory_sizes
from laggard.probes.probe import matches_any
from laggard.probes.rows import Item
from laggard.probes.system.model.services import enabled_units

READABLE: Final = 1
WRITABLE: Final = 2
_READ_ONLY_TYPES: Final = ("cramfs", "erofs", "iso9660", "squashfs", "udf")

_NO_JOB: Final = (
    *("/boot*", "/efi*", "/recovery*", "/media/*", "/snap/*", "/var/snap/*", "/tftpboot", "/srv/tftp*"),
    *("/var/log*", "/var/crash*", "/var/cache/*", "/var/lib/nfs/*", "/dev*", "/proc*", "/run*", "/sys*"),
)
"""Mount points without which a job runs all the same: for booting, sticks, logs, caches, and the kernel's own."""

_PASSING: Final = (*_NO_JOB, "/tmp/*", "/var/lib/kubelet/*", "/var/lib/docker/*", "/var/lib/containers/*")


def read_points(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """What is mounted, and what fstab asks for. Raises NotApplicable in a container, whose fstab is its image's."""
    mounts = read_mounts(host)
    if in_container(mounts) or any(mount.source == "shm" for mount in mounts) or container_of(host):
        raise NotApplicable("a container has mounts of its own")
    wanted = _of_fstab(host, {mount.point: mount.fstype for mount in mounts})
    automounts = tuple(f"{it.point}/" for it in read_mounts(host, all_of_a_point=True) if it.fstype == "autofs")
    there: dict[str, int] = {}
    lasting: set[str] = set()
    for mount in mounts:
        point = printable_path(mount.point)
        there[point] = WRITABLE if mount.writable or mount.fstype in _READ_ONLY_TYPES else READABLE
        passing = mount.of_user or mount.fstype.startswith("fuse") or matches_any(point, _PASSING)
        on_demand = f"{mount.point}/".startswith(automounts)
        if not passing and not on_demand and (mount.remote or point in wanted):
            lasting.add(point)
        if (state := _pool_state(host, mount)) in _POOL_STOPPED:
            there[point], says = 0, f"does not answer: its ZFS pool is {state}"
            wanted[point] = Item(point, 0, WRITABLE, says=says)
    for point in {**there, **wanted, **dict.fromkeys(asked)}:
        amount = there[point] if point in there else there.get(or_none(host.real_path, point) or "", 0)
        yield wanted.get(point, Item(point, 0))._replace(there=amount, lasting=point in lasting)


_POOL_STOPPED: Final = ("FAULTED", "SUSPENDED", "UNAVAIL")
# zpoolconcepts(7): all that reads or writes waits, and the mount's own flags stay as they were.


def _pool_state(host: Host, mount: Mount) -> str:
    """Of a mounted ZFS: what its kernel module says of the pool."""
    pool = mount.source.partition("/")[0]
    return host.text(f"/proc/spl/kstat/zfs/{pool}/state") if mount.fstype == "zfs" and pool.strip(".") else ""


def _of_fstab(host: Host, mounted: Mapping[str, str]) -> dict[str, Item]:
    """The lines of fstab(5) that are mounted at boot; of several for one place, what the last asks for, or less.
    `mounted`: the type of what is mounted, by mount point. Another type (nfs4 is nfs) was mounted by no line, as the
    root of a diskless node: then a line says nothing of how."""
    text = (if_present(host.read_bytes, "/etc/fstab") or b"").decode(errors="surrogateescape") + _of_units(host)
    found: dict[str, Item] = {}
    for words in (line.split() for line in text.splitlines() if not line.lstrip().startswith("#")):
        source, point, fstype, options = (*map(unescape, words[:4]), "", "", "", "")[:4]
        flags = options.split(",")
        if not point.startswith("/") or fstype in ("swap", "ignore", "") or "noauto" in flags:
            continue
        point = printable_path(point.rstrip("/") or "/")
        # mount(8): `nofail` reports no error for a device that does not exist. A device that is there is wanted.
        absent = "nofail" in flags and not _exists(host, source, fstype)
        excused = absent or fstype in ("ramfs", "tmpfs") or matches_any(point, _NO_JOB)
        other = fstype not in ("auto", "none") and mounted.get(point, fstype)[:3] != fstype[:3]
        amount = READABLE if other or "ro" in flags or fstype in _READ_ONLY_TYPES else WRITABLE
        amount = min(amount, found[point].wanted) if point in found else amount
        found[point] = Item(point, 0, amount, Severity.WARNING if excused else Severity.CRITICAL)
    return found


def _of_units(host: Host) -> str:
    """Systemd's mount units that are enabled, as lines of fstab (systemd.mount(5))."""
    lines: list[str] = []
    for unit, path in enabled_units(host).items():
        if unit.endswith(".mount"):
            has = dict(line.partition("=")[::2] for line in host.text(path).splitlines())
            words = (has.get(name, usual) for name, usual in (("What", ""), ("Where", ""), ("Type", "auto")))
            lines.append(" ".join(("\n", *words, has.get("Options", "") or "defaults")))
    return "".join(lines)


def _exists(host: Host, source: str, fstype: str) -> bool:
    """Whether what is to be mounted is there, as far as that can be seen without asking a server."""
    name, sign, value = source.partition("=")
    if sign and name.isalpha():  # UUID=, LABEL=, PARTUUID=, PARTLABEL=
        source = f"/dev/disk/by-{name.lower()}/" + value.strip('"')
    folder, _, last = source.rpartition("/")
    return fstype in REMOTE_TYPES or not source.startswith("/dev/") or last in host.names(folder)


def read_memory(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The bytes of memory that the kernel has, with those that it keeps for a crash kernel, and those of the modules
    that the firmware counts; not those of a hypervisor, and not where the kernel was told to use less."""
    limited = re.search(r"\bmem(map)?=", host.text("/proc/cmdline")) or is_virtual_machine(host)
    installed = 0 if limited else or_none(installed_memory, host) or 0
    total = read_memory_sizes(host)["MemTotal"]
    there = total + (host.number("/sys/kernel/kexec_crash_size") or 0)
    # The kernel's page structures take 1.6 % (64 of 4096 bytes), firmware some GiB. One of 32 modules is 3.1 %.
    yield Item("memory", there, installed, lasting=True, share=0.96)
    yield Item("RealMemory", total, declared_numbers(host).get("realmemory", 0) << 20)


def _declared_processors(host: Host) -> int:
    has = declared_numbers(host)
    sockets = has.get("sockets") or has.get("boards", 1) * has.get("socketsperboard", 1)
    return has.get("cpus") or sockets * has.get("corespersocket", 1) * has.get("threadspercore", 1)


def read_shm(host: Host, asked: Collection[str], least: int = 0) -> Iterator[Item]:
    """The size of /dev/shm, or of /dev below it where nothing is mounted there. Jobs use the one that is seen here on a
    machine with GPUs, and where slurmd starts them; a container has one of its own. No more is wanted than what the
    kernel gives where nothing is said, half of the memory (tmpfs.rst)."""
    pci = or_none(find_nvidia_devices, host)
    used = (pci is not None and (pci.gpus or pci.amd_gpus)) or living_jobs(host).scheduled
    if used and not in_container(read_mounts(host)) and (size := or_none(host.file_system, "/dev/shm")):
        usual = read_memory_sizes(host)["MemTotal"] * 12 // 25  # a little less: the kernel frees memory after booting
        yield Item("/dev/shm", size.total_bytes, min(least, usual))


def read_limits(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """What is left of that of which the kernel gives only so much (conntrack's table, nf_conntrack-sysctl.rst; open
    files, threads, sysctl/fs.rst and kernel.rst; neighbours, ip-sysctl.rst): at its end new connections, files and
    processes fail. One in a hundred is next to nothing: a launcher of eight ranks starts as many threads."""
    connections, threads = "/proc/sys/net/netfilter/nf_conntrack_", "/proc/sys/kernel/"
    files = [*host.text("/proc/sys/fs/file-nr").split(), "", "", ""]
    running = host.text("/proc/loadavg").split()[3:4] or ["/"]
    limits = [text for name in ("threads-max", "pid_max") if (text := host.text(threads + name)).isdecimal()]
    for name, used, most in (
        ("tracked connections", host.text(f"{connections}count"), host.text(f"{connections}max")),
        ("open files", files[0], files[2]),
        ("threads", running[0].partition("/")[2], min(limits, key=int, default="")),
        ("neighbours", _neighbours(host), host.text("/proc/sys/net/ipv4/neigh/default/gc_thresh3")),
        ("memory cgroups", _memory_cgroups(host), "65535"),
    ):
        if used.isdecimal() and most.isdecimal():
            yield Item(name, max(0, int(most) - int(used)), int(most) // 100)


_HEXADECIMAL: Final = lazy_pattern(r"^([0-9a-f]{8}) .* ([0-9a-f]{8})$", re.MULTILINE)
_OF_MEMORY: Final = lazy_pattern(r"^memory\s+[1-9]\d*\s+(\d+)\s", re.MULTILINE)


def _neighbours(host: Host) -> str:
    """The entries of the ARP table, where it has turned some away since boot: lasting ones are not limited, and some
    sites have a file of all nodes' (arp -f)."""
    names, _, text = host.text("/proc/net/stat/arp_cache").partition("\n")
    rows = _HEXADECIMAL.findall(text) if names.endswith("table_fulls") else []
    return str(int(rows[0][0], 16)) if any(int(turned_away, 16) for _, turned_away in rows) else ""


def _memory_cgroups(host: Host) -> str:
    """Those of cgroup v1, with the removed ones that still hold memory. Until Linux 4.7 these keep their numbers, of
    which there are 65,535 (commit 73f576c04b94). Kernels 4.x have that commit by now, those of CentOS 7 do not."""
    found = _OF_MEMORY.search(host.text("/proc/cgroups"))
    return found[1] if found and host.text("/proc/sys/kernel/osrelease").startswith("3.") else ""


_CPU: Final = "/sys/devices/system/cpu"


def read_processors(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The processors that are online, and those that the kernel has found, or half of them where no two threads of a
    core are in use: to take one offline is a setting, and so a warning. A core that the firmware left out the kernel
    does not find; what is told to the scheduler counts then."""
    online, present = (len(parse_cpu_list(host.read(f"{_CPU}/{it}"), f"{_CPU}/{it}")) for it in ("online", "present"))
    single = host.text(f"{_CPU}/smt/active") == "0" or host.text(f"{_CPU}/smt/control") in ("off", "forceoff")
    wanted = 0 if "maxcpus=" in host.text("/proc/cmdline") else present // 2 if single else present
    declared = _declared_processors(host)
    severity = Severity.CRITICAL if online < declared else Severity.WARNING
    yield Item("processors", online, max(wanted, declared), severity, lasting=True)


def read_links(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The links of bonds that share the load, as the bonding driver sees them. In `active-backup` one waits for the
    others, and may be down."""
    for bond in host.names("/proc/net/bonding"):
        first, *links = host.text(f"/proc/net/bonding/{bond}").split("Slave Interface:")
        for link in links if "active-backup" not in first else ():
            down = re.search(r"^MII Status: down", link, re.MULTILINE)
            yield Item(f"{bond} {(link.split() or ['?'])[0]}", int(not down), 1, Severity.WARNING)


_EVERYBODYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("/tmp", "/var/tmp", "/dev/shm"), "d------rwt"),
    "/dev/null": "c------rw- 1:3",
    "/dev/zero": "c------r-- 1:5",
    "/dev/random": "c------r-- 1:8",
    "/dev/urandom": "c------r-- 1:9",
}
"""The least that each place needs, in the form of Host.places(): what its group and all users may do there, of what
kind it is, and a device's numbers, where they are fixed (devices.txt of the kernel; Filesystem Hierarchy Standard)."""
_PASSING_PLACES: Final = ("/tmp/*", "/var/tmp/*", "/dev/*", "/run/*", "/var/run/*", "*%*")
_NVIDIA: Final = 195  # the major number of /dev/nvidiaN and nvidiactl (nv-linux.h, NV_MAJOR_DEVICE_NUMBER)


def read_places(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The places that every user's job uses. Without its sticky bit a folder serves, and is not safe: a warning."""
    if container_of(host):
        raise NotApplicable("a container has files of its own")
    wanted = {**_EVERYBODYS, **_open_folders(host), **_gpu_files(host), **_rdma_files(host)}
    places = or_none(host.places, tuple(wanted)) if host.recorded else host.places(tuple(wanted))
    for path, least in wanted.items() if places else ():
        about = places[path] if places and path in places else least
        missing = _rights(least) - _rights(about)
        right = about[:1] == least[0] and about[10:] in (least[10:] or about[10:], "")
        severity = Severity.WARNING if right and missing == {"t"} else Severity.CRITICAL
        told = (about[:10], least[:10]) if right else (about, least)  # alike for all files of a kind
        yield Item(path, int(right and not missing), 1, severity, says="is {}, and has to be {}".format(*told))


def _open_folders(host: Host) -> Mapping[str, str]:
    """The folders that a site's own lines open to all: those of tmpfiles.d(5), and TmpFS of slurm.conf(5)."""
    top, found = "/etc/tmpfiles.d", {slurm_setting(host, "TmpFS")} - {""}
    for words in (line.split() for name in host.names(top) for line in host.text(f"{top}/{name}").splitlines()):
        if len(words) > 2 and words[0][0] in "dDqQv" and words[2][-1] in "2367":
            found.add(words[1].rstrip("/"))
    return {path: "d------rw-" for path in found if path.startswith("/") and not matches_any(path, _PASSING_PLACES)}


def _rights(mode: str) -> set[str]:
    """What the group, in capitals, and all users may do."""
    return {*mode[4:7].upper(), *mode[7:10].replace("t", "xt").replace("T", "t")} - {"-"}


def _rdma_files(host: Host) -> Mapping[str, str]:
    """The device files of RDMA, which the kernel opens to all (uverbs_devnode() in uverbs_main.c; ucma.c). A site may
    close them to all but a group."""
    names = [name for name in host.names("/dev/infiniband") if name.startswith("uverbs") or name == "rdma_cm"]
    return {f"/dev/infiniband/{name}": "c---rw----" for name in names}


def _gpu_files(host: Host) -> Mapping[str, str]:
    """The device files of NVIDIA's GPUs, open to all where the driver makes them so: its README, chapter on device
    files."""
    params = host.text("/proc/driver/nvidia/params")
    for_all = "ModifyDeviceFiles: 1" in params and "DeviceFileMode: 438" in params
    numbers = {name: name[6:] for name in gpu_files(host)} | {"nvidiactl": "255"} if gpu_files(host) else {}
    mode = "c------rw-" if for_all else "c---------"
    return {f"/dev/{name}": f"{mode} {_NVIDIA}:{number}" for name, number in numbers.items()}


_NAMES: Final = (
    ("/etc/slurm", "plugstack.conf", r"^\s*required\s+(/\S+)"),
    ("/run/cdi", "*", r"\b(?:hostPath|path)\"?: *\"?(/[^\s\",]+)"),
    ("/etc/docker", "daemon.json", r"\"path\"\s*:\s*\"(/[^\"]+)\""),
    ("/etc/containerd", "config.toml", r"^\s*BinaryName\s*=\s*[\"'](/[^\"']+)"),
)
"""The tables of files that each step or container needs: plug-ins of SLURM's that are required (spank(7)), what the
Container Device Interface gives to containers, and the runtimes of containers."""


def read_named_files(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The files that a table names. Where a recording lacks their folder nothing is known of them."""
    found = {
        (path, f"{top}/{name}")
        for top, pattern, named in _NAMES
        for name in host.names(top)
        if matches_any(name, (pattern,))
        for path in re.findall(named, host.text(f"{top}/{name}"), re.MULTILINE)
    }
    for path, table in sorted(found):
        folder, _, name = path.rpartition("/")
        names = or_none(host.entries, folder)
        if names is not None or not host.recorded:
            yield Item(path, int(name in (names or ())), 1, says=f"is not there, and {table} names it")


_CONSTRAINS: Final = {"ConstrainRAMSpace": "memory", "ConstrainSwapSpace": "memory", "ConstrainCores": "cpuset"}


def read_controllers(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The controllers of cgroups by which cgroup.conf constrains jobs: slurmd does not start without them."""
    conf = next(filter(None, (host.text(f"{it.rpartition('/')[0]}/cgroup.conf") for it in CONFIGURATIONS)), "")
    there = host.text("/sys/fs/cgroup/cgroup.controllers").split()
    rows = [line.split() for line in host.text("/proc/cgroups").splitlines()]
    there = there or [row[0] for row in rows if row[-1:] == ["1"]]
    for name, controller in _CONSTRAINS.items() if there else ():
        if re.search(rf"^\s*{name}\s*=\s*yes", conf, re.MULTILINE | re.IGNORECASE):
            yield Item(f"cgroup controller {controller}", int(controller in there), 1)


_RESOLVERS: Final = ("systemd-resolve", "dnsmasq", "unbound", "named", "pdns_recursor", "coredns", "kresd", "nscd")


def read_resolver(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """Whether something answers where names are looked up, as far as this machine alone tells. resolv.conf(5) may name
    only the machine itself, where nothing listens, or be a link to nothing."""
    hosts = re.search(r"^\s*hosts:(.*)", host.text("/etc/nsswitch.conf"), re.MULTILINE)
    if container_of(host) or not hosts or "dns" not in hosts[1].split():
        return
    text = host.text("/etc/resolv.conf")
    servers = re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)
    if or_none(host.read_link, "/etc/resolv.conf") and not exists(host, "/etc/resolv.conf"):
        yield Item("name lookup", 0, 1, says="finds no server: /etc/resolv.conf is a link to nothing")
    elif servers and all(it.startswith("127.") or it == "::1" for it in servers):
        sockets = [host.text(f"/proc/net/{name}") for name in ("udp", "udp6")]
        listens = any(re.search(r"^ *\d+: \w+:0035 ", text, re.MULTILINE) for text in sockets)
        listens = listens or (
            not any(sockets) and any(host.text(f"/proc/{it}/comm") in _RESOLVERS for it in pids(host))
        )
        yield Item("name lookup", int(listens), 1, says=f"finds no server: nothing listens at {servers[0]}")
