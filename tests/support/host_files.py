"""Files in /proc and /sys that belong to no device, for made-up machines: processors, memory, kernel, command line."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from support.archive import Tree

_CPU = "/sys/devices/system/cpu"
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  "
    "(dvs-builder@U16-I1-N07-12-3)\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)


def software_files(cpus: int, modules: Iterable[str]) -> Tree:
    """The files of a machine with processors 0 to `cpus` - 1, all usable by every job, tuned for throughput, and
    without swap."""
    files: Tree = {
        "/proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
        "/proc/vmstat": "nr_free_pages 471859200\npgpgin 98123412\npswpin 0\npswpout 0\npgfault 8812345678\n",
        "/proc/sys/vm/swappiness": "60\n",
        "/laggard/replies.json": '{"/home": {}}\n',
        "/laggard/kmsg": "6,1,0,-;Linux version 5.15.0-113-generic (buildd@lcy02-amd64-080)\n",
        f"{_CPU}/isolated": "",
        f"{_CPU}/smt/active": "1\n",
        f"{_CPU}/smt/control": "on\n",
    }
    for cpu in range(cpus):
        policy = f"{_CPU}/cpufreq/policy{cpu}"
        files[f"{policy}/scaling_driver"] = "intel_pstate\n"
        files[f"{policy}/scaling_governor"] = "performance\n"
        files[f"{policy}/energy_performance_preference"] = "performance\n"
    if "nvidia" in modules:
        files["/proc/driver/nvidia/version"] = OPEN_DRIVER
    return files


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            8388608              unlimited            bytes
Max processes             2059846              2059846              processes
Max open files            1024                 524288               files
Max locked memory         unlimited            unlimited            bytes
Max nice priority         0                    0
"""
_OWN_LIMITS = LIMITS.replace("locked memory         unlimited            unlimited", "locked memory  8388608  8388608")
"""The limits of laggard's own process, which jobs do not have: systemd's default."""

MOUNTS = """sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0
proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0
devtmpfs /dev devtmpfs rw,nosuid,size=4096k,nr_inodes=131072000,mode=755 0 0
tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0
/dev/mapper/system-root / ext4 rw,relatime 0 0
/dev/nvme1n1 /scratch xfs rw,relatime,attr2,inode64 0 0
/dev/nvme0n1p1 /boot ext4 rw,relatime 0 0
/dev/loop3 /snap/core22/1621 squashfs ro,nodev,relatime 0 0
/dev/sr0 /media/install iso9660 ro,relatime 0 0
systemd-1 /projects autofs rw,relatime,fd=62,pgrp=1,timeout=0 0 0
nfs.example:/home /home nfs4 rw,relatime,vers=4.2,hard 0 0
"""

_MDSTAT = """Personalities : [raid1]
md0 : active raid1 sdb2[1] sda2[0]
      1046528 blocks super 1.2 [2/2] [UU]

unused devices: <none>
"""
FSTAB = """# /etc/fstab: static file system information.
#
# <file system> <mount point>   <type>  <options>       <dump>  <pass>
/dev/mapper/system-root / ext4 errors=remount-ro 0 1
# /boot was on /dev/nvme0n1p1 during installation
UUID=6a1c1f0e-2c4b-4d55-9a57-0d1f2e3c4b5a /boot ext4 defaults 0 2
LABEL=scratch	/scratch	xfs	defaults,noatime,inode64	0	0
nfs.example:/home /home nfs4 vers=4.2,hard,_netdev 0 0
nfs.example:/projects /projects nfs4 noauto,x-systemd.automount,_netdev 0 0
/dev/sr0 /media/cdrom udf,iso9660 user,noauto 0 0
#/swap.img none swap sw 0 0
"""
"""What MOUNTS come of, as an installer and a site write it."""

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480C
microcode\t: 0x2b000603
physical id\t: 0
flags\t\t: fpu vme de pse tsc msr pae mce vmx ssse3 fma cx16 x2apic aes avx hle avx2 avx512f amx_tile
"""
"""The first processor; the others are equal."""


def memory_modules(gigabytes: int, slots: int) -> Tree:
    """What the firmware says of memory modules that fill all slots (SMBIOS, structure 17), in the kernel's form."""
    files: Tree = {}
    for slot in range(slots):
        data = bytearray(0x54)
        struct.pack_into("<BBH", data, 0, 17, 0x5C, 0x1100 + slot)
        size = gigabytes // slots << 10
        struct.pack_into("<H", data, 0x0C, size if size < 0x7FFF else 0x7FFF)
        struct.pack_into("<I", data, 0x1C, size if size >= 0x7FFF else 0)
        data[0x12], data[0x28] = 0x22, 3  # DDR5, DRAM
        files[f"/sys/firmware/dmi/entries/17-{slot}/raw"] = bytes(data)
    return files


def host_files(cmdline: str, nodes: dict[int, str], gigabytes: int, modules: Iterable[str]) -> Tree:
    """The files of a machine. `nodes`: the processors of each NUMA node, as the kernel lists them."""
    count = str(max(int(cpus.replace(",", "-").split("-")[-1]) for cpus in nodes.values()))
    node_list = f"0-{len(nodes) - 1}" if len(nodes) > 1 else "0"
    kilobytes = gigabytes << 20
    files: Tree = {
        "/proc/sys/kernel/random/boot_id": "3f0a5c1e-6d6b-4f0e-9c55-0c6f2f1f7a10\n",
        "/proc/sys/kernel/osrelease": "5.15.0-113-generic\n",
        "/proc/cmdline": cmdline + "\n",
        "/proc/cpuinfo": CPUINFO,
        "/proc/uptime": "864000.00 86400000.00\n",
        "/proc/meminfo": f"MemTotal: {kilobytes} kB\nMemFree: {kilobytes * 9 // 10} kB\n"
        f"MemAvailable: {kilobytes * 9 // 10} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nShmem: 20480 kB\n"
        "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n",
        "/etc/fstab": FSTAB,
        "/sys/kernel/kexec_crash_size": "0\n",
        "/proc/modules": "".join(f"{module} 1048576 1 - Live 0x0000000000000000\n" for module in modules),
        "/proc/self/limits": _OWN_LIMITS,
        "/proc/self/mounts": MOUNTS,
        "/proc/self/status": "Name:\tlaggard\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n"
        f"CapEff:\t0000000000000000\nCpus_allowed_list:\t0-{count}\n",
        "/proc/mdstat": _MDSTAT,
        "/proc/2212/comm": "slurmd\n",
        "/proc/2212/stat": f"2212 (slurmd) S 1 2212 2212 0 -1 4194560 {'0 ' * 12}6120 0 0\n",
        "/proc/2212/status": "Name:\tslurmd\nState:\tS (sleeping)\nPid:\t2212\nPPid:\t1\nUid:\t0\t0\t0\t0\n",
        "/proc/2212/limits": LIMITS,
        "/sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs": "2212\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "/sys/devices/system/cpu/online": f"0-{count}\n",
        "/sys/devices/system/cpu/possible": f"0-{count}\n",
        "/sys/devices/system/cpu/present": f"0-{count}\n",
        "/sys/devices/system/node/online": node_list + "\n",
        "/sys/devices/system/node/possible": node_list + "\n",
        "/sys/class/iommu": None,
        "/sys/kernel/iommu_groups": None,
    }
    files.update(software_files(int(count) + 1, modules))
    files.update(memory_modules(gigabytes, 32 if gigabytes > 512 else 8))
    for node, cpus in nodes.items():
        for number in range(4 * node, 4 * node + 4):  # a few corrected errors are none
            controller = f"/sys/devices/system/edac/mc/mc{number}"
            files.update({f"{controller}/ue_count": "0\n", f"{controller}/ce_count": f"{number % 3}\n"})
        folder = f"/sys/devices/system/node/node{node}"
        distances = " ".join("10" if other == node else "21" for other in nodes)
        files.update({f"{folder}/cpulist": cpus + "\n", f"{folder}/distance": distances + "\n"})
    files.update({f"/sys/module/{module}/initstate": "live\n" for module in modules})
    return files
