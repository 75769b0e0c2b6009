"""What the devices of a log are: whose driver speaks of which PCI address, and which NICs have just been started."""

from __future__ import annotations

import math
import re
from typing import Final

from laggard.diagnose.kernel.lines import LogLine

_MAX_DEVICES: Final = 256
_START_SECONDS: Final = 120.0
"""The time after a NIC's driver has started in which it reports ports without a cable: nobody lost them."""
_NAMES: Final = {"nvidia": "GPU", "amdgpu": "GPU", "habanalabs": "Gaudi", "nvme": "NVMe"}
_OF_DRIVER = re.compile(
    r"^(nvidia|amdgpu|habanalabs|mlx5_core|mlx4_core|bnxt_en|ice|nvme)(?: nvme\d+: pci function)? ([0-9a-f:.]{12})\b"
)
_NIC_STARTED = re.compile(
    r"^mlx5_core ([0-9a-f:.]{12}): (?:.*module \d+, Cable (plugged)|"
    r"firmware version: |.*available PCIe bandwidth|E-Switch: Total vports|Rate limit: )"
)
_ADDRESS = re.compile(r"(?:[0-9a-f]{0,4}?([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class Devices:
    """The devices that the records named so far."""

    def __init__(self) -> None:
        self._drivers: dict[str, str] = {}
        self._started: dict[str, float | None] = {}

    def note(self, record: LogLine) -> None:
        if len(self._drivers) < _MAX_DEVICES and (found := _OF_DRIVER.match(record.text)):
            self._drivers[found[2]] = found[1]
        found = _NIC_STARTED.match(record.text)
        if found and (len(self._started) < _MAX_DEVICES or found[1] in self._started):
            self._started[found[1]] = -math.inf if found[2] else record.seconds

    def is_starting(self, address: str, seconds: float | None) -> bool:
        """Whether the NIC's driver was started just before, and has seen no cable since."""
        if address not in self._started:
            return seconds is not None and seconds <= _START_SECONDS  # after boot; dates are larger
        started = self._started[address]
        return started is None or seconds is None or seconds - started <= _START_SECONDS

    def name_of(self, address: str) -> str:
        """Returns a PCI device's address with what it is; anything else as it is."""
        owner = self._drivers.get(address)
        return address if owner is None else f"{_NAMES.get(owner, 'NIC')} {address}"


def pci_address(device: str) -> str:
    """Returns a PCI address as sysfs writes it; empty for what is none."""
    found = _ADDRESS.fullmatch(device.lower())
    return f"{found[1] or '0000'}:{found[2]}" if found else ""
