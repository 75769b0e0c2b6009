"""An HGX H100 node's GPUs and NVSwitches alone: small, for the many machines that differ in NVML's readings."""

from support.archive import Tree
from support.gpus import BUSES, gpu_files
from support.hgx_h100 import GPU, NVSWITCH
from support.pci_tree import PciTree

_SWITCH_BUSES = range(0x83, 0x87)


def hgx_h100_gpus() -> Tree:
    pci = PciTree({0: "0-55,112-167"})
    for bus in BUSES:
        pci.add(f"0000:{bus:02x}:00.0", GPU, driver="nvidia")
    for bus in _SWITCH_BUSES:
        pci.add(f"0000:{bus:02x}:00.0", NVSWITCH, driver="nvidia-nvswitch")
    pci.files["/proc/uptime"] = "864000.00 86400000.00\n"
    pci.files["/proc/sys/kernel/random/boot_id"] = "3f0a5c1e-6d6b-4f0e-9c55-0c6f2f1f7a10\n"
    return {**pci.files, **gpu_files()}
