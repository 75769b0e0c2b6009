"""NVIDIA's devices in the PCI tree: the evidence, independent of any driver, that a machine has GPUs or has none."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host

_DEVICES: Final = "/sys/bus/pci/devices"
_DRIVERS: Final = "/sys/bus/pci/drivers"
_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAY: Final = ("0x0300", "0x0302")  # VGA and 3D controllers (pci_ids.h)
_ACCELERATORS: Final = (*_DISPLAY, "0x0380", "0x1200")
_BRIDGE: Final = "0x0680"  # what an NVSwitch is


class Bus(NamedTuple):
    """`unreadable`: devices that did not tell what they are; one of them may be a GPU."""

    devices: int
    gpus: tuple[str, ...]
    switches: tuple[str, ...]  # NVSwitches
    lent: tuple[str, ...]  # GPUs bound to vfio-pci: a virtual machine has them
    amd: int
    unreadable: tuple[str, ...]


@functools.lru_cache(maxsize=1)
def look_at_bus(host: Host) -> Bus:
    """Raises Unknown where the machine shows no PCI tree."""
    found: dict[str, list[str]] = {"gpus": [], "switches": [], "amd": [], "unreadable": []}
    names = host.entries(_DEVICES)
    for name in names:
        try:
            kind = _kind(host, name)
        except NotFound:  # unplugged since it was listed, or it never said
            kind = "unreadable"
        if kind:
            found[kind].append(name)
    lent = _bound(host, "vfio-pci")
    return Bus(
        devices=len(names),
        gpus=tuple(name for name in found["gpus"] if name not in lent),
        switches=tuple(found["switches"]),
        lent=tuple(name for name in found["gpus"] if name in lent),
        amd=len(found["amd"]),
        unreadable=tuple(found["unreadable"]),
    )


def _kind(host: Host, name: str) -> str:
    kind = host.read(f"{_DEVICES}/{name}/class").strip()[:6]
    if kind not in (*_ACCELERATORS, _BRIDGE):
        return ""
    vendor = host.read(f"{_DEVICES}/{name}/vendor").strip()
    if vendor == _NVIDIA and kind in _DISPLAY:
        return "gpus" if not _is_virtual(host, name) else ""
    if vendor == _NVIDIA and kind == _BRIDGE:
        return "switches"
    return "amd" if vendor == _AMD and kind in _ACCELERATORS else ""


def _is_virtual(host: Host, name: str) -> bool:
    """A virtual function for a guest: the GPU itself is another device."""
    return "physfn" in host.entries(f"{_DEVICES}/{name}")


def _bound(host: Host, driver: str) -> tuple[str, ...]:
    try:
        return host.entries(f"{_DRIVERS}/{driver}")
    except NotFound:
        return ()


class Gpu(NamedTuple):
    address: str
    numa_node: int
    """-1: the firmware does not say."""


def read_gpus(host: Host) -> tuple[Gpu, ...]:
    """NVIDIA's GPUs, but for those that are handed to virtual machines. None is said only of a tree that could be
    read. Raises Unknown."""
    bus = look_at_bus(host)
    if not bus.gpus and bus.unreadable:
        raise Unknown(f"PCI device {bus.unreadable[0]} does not say what it is")
    return tuple(Gpu(address, _numa_node(host, f"{_DEVICES}/{address}")) for address in bus.gpus)


def _numa_node(host: Host, folder: str) -> int:
    try:
        return int(host.read(f"{folder}/numa_node"))
    except (NotFound, ValueError):  # a kernel without NUMA has no such file
        return -1
