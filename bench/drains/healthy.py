"""What everyday faults change on a node, as it is while it is well: fstab, arrays and disks, memory modules, device
files, processors, partitions of InfiniBand. Files that the machine has already stay as they are."""

import re
from typing import Final

from drains.machine import NET, RDMA, Base

EDAC: Final = "sys/devices/system/edac/mc"
CPU: Final = "sys/devices/system/cpu"
ARRAY: Final = "sys/block/md127/md"
BOND: Final = "proc/net/bonding/bond0"
DIMMS: Final = 16
"""The memory modules, half of them at each memory controller."""

_FSTAB: Final = """/dev/mapper/system-root / ext4 defaults 0 1
/dev/nvme0n1p1 /boot ext4 defaults 0 2
/dev/nvme1n1 /scratch xfs defaults 0 0
nfs.example:/home /home nfs4 vers=4.2,hard,_netdev 0 0"""
_MDSTAT: Final = """Personalities : [raid1]
md127 : active raid1 nvme2n1p3[1] nvme0n1p3[0]
      936571904 blocks super 1.2 [2/2] [UU]

unused devices: <none>"""
_LEG: Final = """
Slave Interface: {name}
MII Status: up
Speed: 25000 Mbps
Link Failure Count: 0
Aggregator ID: 1"""
_BOND: Final = "Bonding Mode: IEEE 802.3ad Dynamic link aggregation\nMII Status: up\nNumber of ports: 2\n"
LEGS: Final = ("eno8303", "eno8403")


def dress(base: Base) -> Base:
    """Writes the files that the node lacks."""
    root, driver = base.root, base.nvml["driver_version"]
    minors = [gpu["minor"] for gpu in base.nvml["gpus"]]
    files = {
        "etc/fstab": _FSTAB,
        "proc/loadavg": "0.42 0.38 0.35 1/1893 70211",
        "proc/sys/kernel/tainted": "12288",  # O and E: a module from elsewhere, without a signature
        "sys/module/nvidia/version": driver,
        **{f"dev/{name}": "" for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in minors))},
        **{f"sys/class/nvme/nvme{number}/state": "live" for number in (0, 1, 2)},
        **(_bare_metal(base) if base.kind != "cloud_guest_l40s" else {}),
    }
    for device in base.ports:
        folder = f"{RDMA}/{device}/ports/1"
        if (root / folder / "link_layer").read_text().startswith("Inf"):
            files[f"{folder}/pkeys/1"] = "0x8012"
    for path, text in files.items():
        if not (root / path).exists():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n" if text else "")
    loaded = root / "proc/driver/nvidia/version"
    loaded.write_text(re.sub(r"x86_64  \S+", f"x86_64  {driver}", loaded.read_text()))
    memory = root / "proc/meminfo"
    if "HardwareCorrupted" not in (before := memory.read_text()):
        memory.write_text(
            f"{before}Buffers: 412 kB\nCached: 8388608 kB\nSUnreclaim: 2097152 kB\nHardwareCorrupted: 0 kB\n"
        )
    return base


def _bare_metal(base: Base) -> dict[str, str]:
    total = int((base.root / "proc/meminfo").read_text().split()[1]) >> 10
    found = {"proc/mdstat": _MDSTAT, f"{ARRAY}/array_state": "clean", f"{ARRAY}/degraded": "0"}
    found |= {f"{ARRAY}/raid_disks": "2", f"{ARRAY}/level": "raid1", f"{ARRAY}/sync_action": "idle"}
    for number in range(DIMMS):
        controller, slot = divmod(number, DIMMS // 2)
        folder = f"{EDAC}/mc{controller}"
        found |= {f"{folder}/{name}_count": "0" for name in ("ue", "ce", "ue_noinfo", "ce_noinfo")}
        found[f"{folder}/size_mb"] = str(total // 2)
        found[f"{folder}/dimm{slot}/size"] = str(total // DIMMS)
        found |= {f"{folder}/dimm{slot}/dimm_{name}_count": "0" for name in ("ue", "ce")}
    for place in (base.root / CPU).glob("cpufreq/policy*"):
        policy, cpu = f"{CPU}/cpufreq/{place.name}", place.name[len("policy") :]
        found |= {f"{policy}/scaling_cur_freq": "3000000", f"{policy}/cpuinfo_max_freq": "3800000"}
        found[f"{CPU}/cpu{cpu}/thermal_throttle/package_throttle_count"] = "0"
    if base.has_switches:
        found[BOND] = _BOND + "".join(_LEG.format(name=name) + "\n" for name in LEGS)
        found[f"{NET}/bond0/bonding/slaves"] = " ".join(LEGS)
        found[f"{NET}/{LEGS[1]}/operstate"], found[f"{NET}/{LEGS[1]}/carrier"] = "up", "1"
    return found
