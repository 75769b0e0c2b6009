"""Files that the software probes read: frequency governors, swap, the NVIDIA driver's version, replies of mounts."""

from __future__ import annotations

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
