"""Files in /proc and /sys that belong to no device, for made-up machines: processors, memory, kernel, command line."""

import json
import struct
from collections.abc import Iterable

from support.archive import Tree
from support.paths import TESTS

_FILES = TESTS / "data" / "host"
_CONSTANT: dict[str, Tree] = json.loads((_FILES / "files.json").read_text())
"""Files that are the same on all machines."""

_CPU = "/sys/devices/system/cpu"
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  "
    "(dvs-builder@U16-I1-N07-12-3)\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)


def software_files(cpus: int, modules: Iterable[str]) -> Tree:
    """The files of a machine with processors 0 to `cpus` - 1, all usable by every job, tuned for throughput, and
    without swap."""
    files: Tree = dict(_CONSTANT["software"])
    for cpu in range(cpus):
        policy = f"{_CPU}/cpufreq/policy{cpu}"
        files[f"{policy}/scaling_driver"] = "intel_pstate\n"
        files[f"{policy}/scaling_governor"] = "performance\n"
        files[f"{policy}/energy_performance_preference"] = "performance\n"
    if "nvidia" in modules:
        files["/proc/driver/nvidia/version"] = OPEN_DRIVER
    return files


LIMITS = (_FILES / "limits").read_text()
_OWN_LIMITS = LIMITS.replace("locked memory         unlimited            unlimited", "locked memory  8388608  8388608")
"""The limits of laggard's own process, which jobs do not have: systemd's default."""

MOUNTS = (_FILES / "mounts").read_text()

_MDSTAT = (_FILES / "mdstat").read_text()
FSTAB = (_FILES / "fstab").read_text()
"""What MOUNTS come of, as an installer and a site write it."""

CPUINFO = (_FILES / "cpuinfo").read_text()
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
        **_CONSTANT["host"],
        "/proc/cmdline": cmdline + "\n",
        "/proc/cpuinfo": CPUINFO,
        "/proc/meminfo": f"MemTotal: {kilobytes} kB\nMemFree: {kilobytes * 9 // 10} kB\n"
        f"MemAvailable: {kilobytes * 9 // 10} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nShmem: 20480 kB\n"
        "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n",
        "/etc/fstab": FSTAB,
        "/proc/modules": "".join(f"{module} 1048576 1 - Live 0x0000000000000000\n" for module in modules),
        "/proc/self/limits": _OWN_LIMITS,
        "/proc/self/mounts": MOUNTS,
        "/proc/self/status": "Name:\tlaggard\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n"
        f"CapEff:\t0000000000000000\nCpus_allowed_list:\t0-{count}\n",
        "/proc/mdstat": _MDSTAT,
        "/proc/2212/limits": LIMITS,
        "/sys/devices/system/cpu/online": f"0-{count}\n",
        "/sys/devices/system/cpu/possible": f"0-{count}\n",
        "/sys/devices/system/cpu/present": f"0-{count}\n",
        "/sys/devices/system/node/online": node_list + "\n",
        "/sys/devices/system/node/possible": node_list + "\n",
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
