"""MOUNT_MISSING, HOST_MEMORY_LOW, JOB_LEFTOVERS, KERNEL_LIMIT_REACHED, CPU_MISSING, SHM_SMALL, MODULE_MISSING,
FILE_MODE_WRONG, SERVICE_DOWN and BOND_DEGRADED: what must be there, and is not, or not as it must be. A row for each
kind of thing: see rows.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from laggard.probes.host.host import Host
from laggard.probes.probe import KERNEL, Count, Probe, Thresholds
from laggard.probes.rows import FILES, MODULES, Row, Told, judge
from laggard.probes.system.model import leftovers, own_tables, services
from laggard.probes.system.model.own_tables import READABLE, WRITABLE


class ExpectedThresholds(Thresholds, frozen=True):
    """A site's lines. In `nodes` of a profile or of --expect they are for the nodes that a pattern names."""

    mounts: tuple[str, ...] = ()
    """Mount points that must be there, and be writable; ` ro` behind one: or not."""

    memory_bytes: Count = 0
    """The memory that the node must have; 0: what its firmware counts. 4 % of it may be the kernel's own."""

    processors: Count = 0
    """The processors that must be online; 0: those that the kernel has found."""

    shm_bytes: Count = 1 << 30
    """The least size of /dev/shm on a node with GPUs: NVIDIA's notes on its containers ask for `--shm-size=1g`."""

    modules: tuple[str, ...] = ()
    """Kernel modules that must be loaded."""

    device_files: tuple[str, ...] = ()
    """Paths of device files that must be there: `/dev/gdrdrv`."""

    services: tuple[str, ...] = ()
    """Services of systemd that must run: `munge`."""

    ignore: tuple[str, ...] = ()
    """Patterns of what may be missing, or different: a mount point, `memory`, `processors`, `bond0 *`, a service."""


def check(host: Host, thresholds: ExpectedThresholds) -> Told:
    t = thresholds
    mounts = {it.removesuffix(" ro"): READABLE if it.endswith(" ro") else WRITABLE for it in t.mounts}
    lines: tuple[tuple[Row, Mapping[str, int]], ...] = (
        (MOUNTS, mounts),
        (MEMORY, {"memory": t.memory_bytes} if t.memory_bytes else {}),
        (FREE, {}),
        (LEFT, {}),
        (LIMITS, {}),
        (PROCESSORS, {"processors": t.processors} if t.processors else {}),
        (SHM._replace(read=partial(own_tables.read_shm, least=t.shm_bytes)), {}),
        (MODULES, dict.fromkeys(t.modules, 1)),
        (FILES, dict.fromkeys(t.device_files, 1)),
        (LINKS, {}),
        (SERVICES, dict.fromkeys(t.services, 1)),
        (PLACES, {}),
    )
    for row, site in lines:
        yield from judge(host, row, site, t.ignore)


MOUNTS: Final = Row(
    "mounts", "MOUNT_MISSING", "is not mounted",
    "Mount it again, once what keeps it away is gone: the unit's log, the disk, the server. After errors, check it.",
    ("findmnt --verify", "systemctl --failed --type=mount", "dmesg -T | tail -n 50"), own_tables.read_points,
    less="is mounted read-only",
)  # fmt: skip
MEMORY: Final = Row(
    "memory", "HOST_MEMORY_LOW", "is {there:.4g} of {wanted:.4g} GiB",
    "Find the module that failed in the BMC's log, and reseat or replace it.",
    ("dmidecode -t 17", "ipmitool sel elist", "numactl -H"), own_tables.read_memory,
    # The kernel's page structures take 1.6 % (64 of 4096 bytes), firmware some GiB. One of 32 modules is 3.1 %.
    share=0.96, unit=1 << 30,
)  # fmt: skip
FREE: Final = Row(
    "free", "HOST_MEMORY_LOW", "is {there:.4g} GiB, and no job runs",
    "Memory is used up: remove what dead jobs left in /dev/shm, and end what has the rest.",
    ("ls -lS /dev/shm", "ps -eo pid,user,rss,cmd --sort -rss | head", "slabtop -o | head -n 20"), leftovers.read_free,
    unit=1 << 30,
)  # fmt: skip
LEFT: Final = Row(
    "leftovers", "JOB_LEFTOVERS", "",
    "End them; one in state D ends with its call. Slurm's UnkillableStepTimeout and ProctrackType=proctrack/cgroup "
    "tell why they stayed.",
    ("systemd-cgls /system.slice/slurmstepd.scope", "ps -eo pid,user,stat,wchan,cmd"), leftovers.read_leftovers,
)  # fmt: skip
LIMITS: Final = Row(
    "limits", "KERNEL_LIMIT_REACHED", "are used up: {there:.0f} are left",
    "Find who holds them and end it; if all are needed, raise the kernel's limit. That of memory cgroups ends with a "
    "reboot; a newer kernel has none.",
    ("conntrack -S", "sysctl net.netfilter.nf_conntrack_max fs.file-nr kernel.threads-max kernel.pid_max",
     "ip -s neigh show nud all | wc -l; sysctl net.ipv4.neigh.default.gc_thresh3; cat /proc/cgroups",
     "ps -eLf | awk '{print $1}' | sort | uniq -c | sort -n | tail"), own_tables.read_limits,
)  # fmt: skip
PROCESSORS: Final = Row(
    "processors", "CPU_MISSING", "are {there:.0f} of {wanted:.0f}",
    "Bring them online (`chcpu -e`); where the kernel has not found them, the BIOS's settings and log say why.",
    ("lscpu -e", "cat /sys/devices/system/cpu/offline", "dmesg -T | grep -i smpboot"),
    own_tables.read_processors,
)  # fmt: skip
SHM: Final = Row(
    "shm", "SHM_SMALL", "is {there:.4g} of {wanted:.4g} GiB",
    "Mount it with the kernel's default, half of the memory; for a container's own give --shm-size or an emptyDir.",
    ("df -h /dev/shm", "mount -o remount,size=50% /dev/shm", "grep shm /etc/fstab"), own_tables.read_shm,
    unit=1 << 30,
)  # fmt: skip
LINKS: Final = Row(
    "bond_links", "BOND_DEGRADED", "is down: the bond carries less",
    "Check the cable, the transceiver and the switch's port of that link.",
    ("cat /proc/net/bonding/*", "ip -s link"), own_tables.read_links,
)  # fmt: skip

SERVICES: Final = Row(
    "services", "SERVICE_DOWN", "does not run",
    "Its log says why it ended. Mend that and start it; where nobody needs it, disable it.",
    ("systemctl --failed", "systemctl status UNIT", "journalctl -b -u UNIT"), services.read_services,
)  # fmt: skip
PLACES: Final = Row(
    "places", "FILE_MODE_WRONG", "",
    "`chmod 1777` the folder. Remove what is in a device file's place, and let udev (`udevadm trigger`) or "
    "nvidia-modprobe make it anew. A cleaning script or an image's build is the usual cause.",
    ("ls -ld /tmp /var/tmp /dev/shm", "ls -l /dev/null /dev/zero /dev/urandom /dev/nvidia*"), own_tables.read_places,
)  # fmt: skip

PROBE: Final = Probe("expected", check, ExpectedThresholds(), group=KERNEL)
