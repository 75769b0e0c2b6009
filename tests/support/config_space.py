"""Builds the PCI configuration space of made-up devices. Offsets: include/uapi/linux/pci_regs.h."""

import struct
from typing import NamedTuple

ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM, PCI_BRIDGE = 0, 4, 5, 6, 7
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5}
_PM, _EXPRESS = 0x40, 0x60
_AER, _ACS, _ATS = 0x100, 0x170, 0x200
SOURCE_VALID, REDIRECT = 0x01, 0x1D
"""ACS control as the kernel sets it: source validation, request and completion redirect, upstream forwarding."""


class Link(NamedTuple):
    """Speeds in GT/s as sysfs prints them, without the unit. Empty or 0, the maxima are what the link runs at."""

    speed: str
    width: int
    max_speed: str = ""
    max_width: int = 0

    @property
    def maximum(self) -> tuple[str, int]:
        return self.max_speed or self.speed, self.max_width or self.width


class Device(NamedTuple):
    vendor: int
    device: int
    kind: int  # the class code, 24 bits
    port: int = ENDPOINT
    link: Link | None = None  # None: not a PCI Express device
    revision: int = 0
    subsystem: tuple[int, int] = (0, 0)
    payload: int = 256
    max_payload: int = 512
    read_request: int = 512
    acs: tuple[int, int] | None = None  # capability and control; None: no such capability
    ats: bool | None = None  # enabled; None: no such capability


def config_space(device: Device, buses: tuple[int, int, int] | None = None) -> bytes:
    """The configuration space: 4096 bytes for a PCI Express device, else 256. `buses`: the primary, secondary and
    subordinate bus of a bridge."""
    data = bytearray(4096 if device.link else 256)
    struct.pack_into("<HHHH", data, 0, device.vendor, device.device, 0x0406, 0x0010)
    struct.pack_into("<I", data, 8, device.kind << 8 | device.revision)
    data[0x0E] = 1 if buses else 0
    if buses:
        data[0x18:0x1B] = bytes(buses)
    else:
        struct.pack_into("<HH", data, 0x2C, *device.subsystem)
    data[0x34] = _PM
    struct.pack_into("<BBHH", data, _PM, 0x01, _EXPRESS if device.link else 0, 3, 0x0008)
    if device.link:
        _express(data, device, device.link)
        _extended(data, device)
    return bytes(data)


def _express(data: bytearray, device: Device, link: Link) -> None:
    max_speed, max_width = link.maximum
    generation = GENERATIONS[max_speed]
    control = 0x0010 | _power(device.payload) << 5 | _power(device.read_request) << 12 | 0x0F
    status = GENERATIONS[link.speed] | link.width << 4 | 0x1000 | (0x2000 if device.port in (4, 6) else 0)
    struct.pack_into("<BBH", data, _EXPRESS, 0x10, 0, 0x2 | device.port << 4)
    struct.pack_into("<IHH", data, _EXPRESS + 4, _power(device.max_payload), control, 0)
    struct.pack_into("<IHH", data, _EXPRESS + 0xC, generation | max_width << 4, 0, status)
    struct.pack_into("<I", data, _EXPRESS + 0x2C, ((1 << generation) - 1) << 1)
    struct.pack_into("<H", data, _EXPRESS + 0x30, generation)


def _extended(data: bytearray, device: Device) -> None:
    chain = [(_AER, 0x0001, 2)]
    if device.acs:
        chain.append((_ACS, 0x000D, 1))
        struct.pack_into("<HH", data, _ACS + 4, *device.acs)
    if device.ats is not None:
        chain.append((_ATS, 0x000F, 1))
        struct.pack_into("<HH", data, _ATS + 4, 0x0020, 0x8000 if device.ats else 0)
    for (offset, number, version), (following, _, _) in zip(chain, [*chain[1:], (0, 0, 0)], strict=True):
        struct.pack_into("<I", data, offset, number | version << 16 | following << 20)


def _power(size: int) -> int:
    """The code of a size: 0 for 128 bytes, 1 for 256, and so on."""
    return size.bit_length() - 8
