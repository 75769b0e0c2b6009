"""The machine's PCI devices as values: what each is, which bridge is above it, and its registers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from laggard.kit.majority import with_peers
from laggard.probes.pci.model.config_space import NOT_READ, ConfigSpace

NVIDIA, MELLANOX, AMD = 0x10DE, 0x15B3, 0x1002
_HABANA: Final = 0x1DA3
_VGA, _3D, _DISPLAY, _ACCELERATOR = 0x0300, 0x0302, 0x0380, 0x1200
_ETHERNET, _INFINIBAND = 0x0200, 0x0207

_GPU_CLASSES: Final = {
    NVIDIA: (_VGA, _3D),
    AMD: (_3D, _DISPLAY, _ACCELERATOR),  # its VGA devices drive screens
    _HABANA: (_ACCELERATOR,),
}
_MAX_DEPTH: Final = 64  # more than any machine has: a parent could name a device below it


class LinkState(NamedTuple):
    """A device's link as it runs now and as it can run: speeds in GT/s, widths in lanes; 0 where it is not reported."""

    speed: float = 0.0
    width: int = 0
    max_speed: float = 0.0
    max_width: int = 0


class PciDevice(NamedTuple):
    address: str  # 0000:1a:00.0
    parent: str | None = None
    pci_class: int | None = None
    """Class and subclass, as 0x0604; None: not known."""

    vendor: int | None = None
    device: int | None = None
    subsystems: frozenset[str] = frozenset()
    """The kernel subsystems in which it has a device, of infiniband, net and nvme."""

    numa_node: int | None = None
    """-1: the firmware does not report it; None: the kernel does not."""

    link: LinkState = LinkState()
    config: ConfigSpace = NOT_READ
    config_error: str = ""
    """Why `config` could not be read."""

    parent_known: bool = True
    """False: which bridge is above the device is not known."""

    model: str = ""
    """The model's name, where the numbers are not known."""

    folder: str = ""
    virtual_function: bool = False
    """A function that another one of this machine, the physical one, has made (SR-IOV)."""

    @property
    def is_gpu(self) -> bool:
        return self.pci_class is not None and self.pci_class in _GPU_CLASSES.get(self.vendor or 0, ())

    @property
    def is_rdma_nic(self) -> bool:
        """True also for a NIC whose driver is not loaded, and that therefore has no RDMA device yet."""
        network = self.pci_class in (_ETHERNET, _INFINIBAND)
        return "infiniband" in self.subsystems or self.pci_class == _INFINIBAND or (network and self.vendor == MELLANOX)

    @property
    def hardware(self) -> tuple[int | None, int | None, str]:
        """Equal for devices of one model."""
        return self.vendor, self.device, self.model

    @property
    def domain(self) -> str:
        return self.address.split(":", 1)[0]


class PciTree(msgspec.Struct, frozen=True):
    devices: Mapping[str, PciDevice]  # by address

    def __iter__(self) -> Iterator[PciDevice]:
        return iter(self.devices.values())

    def path_to_root(self, address: str) -> tuple[PciDevice, ...]:
        """Returns the device and all bridges above it, up to the root port."""
        found: list[PciDevice] = []
        next_address: str | None = address
        while next_address is not None and next_address in self.devices and len(found) < _MAX_DEPTH:
            found.append(self.devices[next_address])
            next_address = self.devices[next_address].parent
        return tuple(found)

    def paths_to_root(self, ends: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
        """Returns `ends` and all bridges above them, each once."""
        found = {device.address: device for end in ends for device in self.path_to_root(end.address)}
        return tuple(found.values())

    def endpoints(self) -> tuple[PciDevice, ...]:
        """Returns the GPUs, but no display card, and the RDMA NICs."""
        gpus = with_peers((device for device in self if device.is_gpu), lambda device: device.hardware)
        return tuple(device for device in self if device.is_rdma_nic or (device.is_gpu and device in gpus))

    def updated(self, devices: Iterable[PciDevice]) -> PciTree:
        """Returns the tree with these devices in the place of those at their addresses."""
        return PciTree({**self.devices, **{device.address: device for device in devices}})


def ports_between(tree: PciTree, one: str, other: str) -> tuple[PciDevice, ...]:
    """Returns the two ports at which traffic from `one` to `other` turns from up to down: the downstream ports of the
    switch that both are behind, or the two root ports if there is no such switch. Empty where both are behind the same
    port, or are not in one PCI domain."""
    first, second = tree.path_to_root(one)[::-1], tree.path_to_root(other)[::-1]
    if not first or not second or first[0].domain != second[0].domain:
        return ()
    shared = 0
    while shared < min(len(first), len(second)) and first[shared].address == second[shared].address:
        shared += 1
    ports = tuple(path[shared] for path in (first, second) if shared < len(path) - 1)
    return ports if len(ports) == 2 else ()


def share_root_port(tree: PciTree, one: str, other: str) -> bool:
    first, second = tree.path_to_root(one), tree.path_to_root(other)
    return bool(first and second) and first[-1].address == second[-1].address
