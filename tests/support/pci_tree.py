"""/sys/devices and /sys/bus/pci of made-up machines."""

import os
from pathlib import Path

from support.archive import Tree
from support.config_space import Device, config_space

_ERRORS = {
    "aer_dev_correctable": ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr"),
    "aer_dev_fatal": ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "MalfTLP"),
    "aer_dev_nonfatal": ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "MalfTLP"),
}
_TOTALS = {
    "aer_dev_correctable": "TOTAL_ERR_COR",
    "aer_dev_fatal": "TOTAL_ERR_FATAL",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL",
}


class PciTree:
    """Collects the files of a machine's PCI devices. `cpus`: the processors of each NUMA node."""

    def __init__(self, cpus: dict[int, str]) -> None:
        self.files: Tree = {}
        self._cpus = cpus  # by NUMA node
        self._folders: dict[str, str] = {}

    def folder(self, address: str) -> str:
        return self._folders[address]

    def add(
        self,
        address: str,
        device: Device,
        *,
        parent: str | None = None,
        node: int = 0,
        driver: str = "",
        secondary: tuple[int, int] | None = None,
    ) -> str:
        """Adds a device behind `parent`, by address, and returns its folder. `secondary`: the first and last bus behind
        a bridge."""
        above = self._folders[parent] if parent else f"/sys/devices/pci{address.rsplit(':', 1)[0]}"
        folder = self._folders[address] = f"{above}/{address}"
        buses = (int(address.split(":")[1], 16), *secondary) if secondary else None
        self._put(folder, "config", config_space(device, buses))
        for name, value in {
            "vendor": f"{device.vendor:#06x}",
            "device": f"{device.device:#06x}",
            "class": f"{device.kind:#08x}",
            "revision": f"{device.revision:#04x}",
            "subsystem_vendor": f"{device.subsystem[0]:#06x}",
            "subsystem_device": f"{device.subsystem[1]:#06x}",
            "numa_node": str(node),
            "local_cpulist": self._cpus.get(node, self._cpus.get(0, "")),
            "modalias": _modalias(device),
            "enable": "1",
            "power_state": "D0",
        }.items():
            self._put(folder, name, value + "\n")
        if device.link:
            self._link(folder, device)
        self.link(f"/sys/bus/pci/devices/{address}", folder)
        self.link(f"{folder}/subsystem", "/sys/bus/pci")
        if driver:
            self.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
            self.link(f"/sys/bus/pci/drivers/{driver}/{address}", folder)
        return folder

    def _link(self, folder: str, device: Device) -> None:
        assert device.link
        max_speed, max_width = device.link.maximum
        self._put(folder, "current_link_speed", f"{device.link.speed} GT/s PCIe\n")
        self._put(folder, "current_link_width", f"{device.link.width}\n")
        self._put(folder, "max_link_speed", f"{max_speed} GT/s PCIe\n")
        self._put(folder, "max_link_width", f"{max_width}\n")
        for name, kinds in _ERRORS.items():
            self._put(folder, name, "".join(f"{kind} 0\n" for kind in (*kinds, _TOTALS[name])))

    def link(self, path: str, target: str) -> None:
        """Adds a symlink, relative as those of sysfs."""
        self.files[path] = Path(os.path.relpath(target, os.path.dirname(path)))

    def _put(self, folder: str, name: str, content: str | bytes) -> None:
        self.files[f"{folder}/{name}"] = content


def _modalias(device: Device) -> str:
    vendor, product = device.subsystem
    kind = f"bc{device.kind >> 16:02X}sc{device.kind >> 8 & 255:02X}i{device.kind & 255:02X}"
    return f"pci:v{device.vendor:08X}d{device.device:08X}sv{vendor:08X}sd{product:08X}{kind}"
