"""The machine's PCI devices as values: what each is, what is above it, what its registers say. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.probes.pci.model.config_space import Config

NVIDIA, MELLANOX, AMD = 0x10DE, 0x15B3, 0x1002
_HABANA: Final = 0x1DA3
_VGA, _3D, _DISPLAY, _ACCELERATOR = 0x0300, 0x0302, 0x0380, 0x1200
_ETHERNET, _INFINIBAND = 0x0200, 0x0207

_GPU_KINDS: Final = {
    NVIDIA: (_VGA, _3D),
    AMD: (_3D, _DISPLAY, _ACCELERATOR),  # its VGA devices drive screens
    _HABANA: (_ACCELERATOR,),
}


class Link(NamedTuple):
    """Speeds in GT/s and lanes; 0 where the device does not say."""

    speed: float = 0.0
    width: int = 0
    most_speed: float = 0.0
    most_width: int = 0


class PciDevice(NamedTuple):
    address: str  # 0000:1a:00.0
    parent: str | None = None
    kind: int | None = None
    """Class and subclass, as 0x0604; None: not known."""

    vendor: int | None = None
    device: int | None = None
    uses: frozenset[str] = frozenset()
    """Which kernel subsystems it serves, of infiniband, net and nvme."""

    node: int | None = None
    """NUMA node; -1: the firmware does not tell; None: the kernel does not."""

    link: Link = Link()
    config: Config | None = None
    """None: not read, or not readable; then `why_no_config` says why."""

    why_no_config: str = ""
    placed: bool = True
    """False: what is above the device is not known."""

    model: str = ""
    """A name, where numbers are not known."""

    folder: str = ""

    @property
    def is_gpu(self) -> bool:
        return self.kind is not None and self.kind in _GPU_KINDS.get(self.vendor or 0, ())

    @property
    def is_rdma_nic(self) -> bool:
        """Also one whose driver is not loaded, and so has no RDMA device yet."""
        network = self.kind in (_ETHERNET, _INFINIBAND)
        return "infiniband" in self.uses or self.kind == _INFINIBAND or (network and self.vendor == MELLANOX)

    @property
    def hardware(self) -> tuple[int | None, int | None, str]:
        """Alike for devices of one model."""
        return self.vendor, self.device, self.model

    @property
    def domain(self) -> str:
        return self.address.split(":", 1)[0]


@dataclasses.dataclass(frozen=True)
class PciTree:
    devices: Mapping[str, PciDevice]  # by address

    def __iter__(self) -> Iterator[PciDevice]:
        return iter(self.devices.values())

    def path(self, address: str) -> tuple[PciDevice, ...]:
        """The device and all above it, up to the root port."""
        found: list[PciDevice] = []
        step: str | None = address
        while step is not None and step in self.devices and len(found) < 64:
            found.append(self.devices[step])
            step = self.devices[step].parent
        return tuple(found)

    def endpoints(self) -> tuple[PciDevice, ...]:
        """GPUs and RDMA NICs."""
        return tuple(device for device in self if device.is_gpu or device.is_rdma_nic)

    def replaced(self, devices: Iterable[PciDevice]) -> PciTree:
        return PciTree({**self.devices, **{device.address: device for device in devices}})


def meeting_ports(tree: PciTree, one: str, other: str) -> tuple[PciDevice, ...]:
    """Where what `one` sends to `other` turns: the two downstream ports of the switch that both are behind. Without
    such a switch the two root ports; empty where both are behind the same port, or are not in one PCI domain."""
    first, second = tree.path(one)[::-1], tree.path(other)[::-1]
    if not first or not second or first[0].domain != second[0].domain:
        return ()
    shared = 0
    while shared < min(len(first), len(second)) and first[shared].address == second[shared].address:
        shared += 1
    ports = tuple(path[shared] for path in (first, second) if shared < len(path) - 1)
    return ports if len(ports) == 2 else ()


def behind_one_switch(tree: PciTree, one: str, other: str) -> bool:
    first, second = tree.path(one), tree.path(other)
    return bool(first and second) and first[-1].address == second[-1].address
