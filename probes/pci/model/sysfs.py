"""PCI devices as /sys shows them. All devices are listed; links, NUMA nodes and configuration space are read only for
the devices that a probe judges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from laggard.kit.words import lazy_pattern
from laggard.probes.errors import NotApplicable, Unknown, if_present
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.pci.model.config_space import STANDARD_BYTES, parse_config, read_needed_bytes
from laggard.probes.pci.model.tree import LinkState, PciDevice, PciTree
from laggard.probes.probe import Thresholds

_DEVICES: Final = "/sys/bus/pci/devices"
_BUSES: Final = "/sys/class/pci_bus"
_ADDRESS: Final = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SUBSYSTEMS: Final = ("infiniband", "net", "nvme")
_WITH_FUNCTIONS: Final = (0x02, 0x03, 0x12)
"""The base classes of NICs, GPUs and accelerators: the devices that have virtual functions, or subsystems' devices."""

_MODALIAS: Final = lazy_pattern(
    r"pci:v([0-9A-F]{8})d([0-9A-F]{8})sv[0-9A-F]{8}sd[0-9A-F]{8}bc([0-9A-F]{2})sc([0-9A-F]{2})"
)


class EndpointThresholds(Thresholds, frozen=True):
    endpoints: tuple[str, ...] = ()
    """PCI addresses of the devices to judge, with the bridges above them. None named: all GPUs and RDMA NICs."""


class VirtualThresholds(EndpointThresholds, frozen=True):
    virtual: bool | None = None
    """This is a virtual machine, whose ports are made up. None: decided by what the kernel reports."""

    def is_virtual_machine(self, host: Host) -> bool | None:
        return is_virtual_machine(host) if self.virtual is None else self.virtual


def read_tree(host: Host) -> PciTree:
    """Reads all devices with their parents, classes and ids. Raises Unknown where there is no list of devices."""
    listed = {entry.address: entry for entry in _listed(host)}
    if not listed or not all(entry.parent_known for entry in listed.values()):
        listed.update((entry.address, entry) for entry in _in_buses(host))
    if not listed:
        raise Unknown(f"{_DEVICES} lists no device: this is no machine, or a part of one")
    return PciTree({address: _identified(host, listed[address]) for address in sorted(listed)})


def select_endpoints(tree: PciTree, named: Iterable[str] = ()) -> tuple[PciDevice, ...]:
    """Returns the devices that the profile names, else GPUs and RDMA NICs. Raises NotApplicable where there is none,
    Unknown where a named device is missing or the class of a device is not known."""
    missing = [address for address in named if address not in tree.devices]
    if missing:
        raise Unknown(f"the profile's endpoint {missing[0]} is not on this machine's PCI bus")
    chosen = tuple(tree.devices[address] for address in named) or tree.endpoints()
    if chosen:
        return chosen
    if unknown := [device.address for device in tree if device.pci_class is None]:
        raise Unknown(f"the class of {len(unknown)} PCI devices cannot be read, of {unknown[0]} for one")
    raise NotApplicable(f"none of the {len(tree.devices)} PCI devices is a GPU or an RDMA NIC")


def with_links(host: Host, devices: Iterable[PciDevice]) -> Iterator[PciDevice]:
    for device in devices:
        yield device._replace(link=_link(host, device.folder))


def with_config(host: Host, devices: Iterable[PciDevice]) -> Iterator[PciDevice]:
    """Reads configuration space. Without root the kernel shows 64 bytes; where laggard's reader does not run either,
    later registers are not known."""
    for device in devices:
        try:
            data = host.read_parts(f"{device.folder}/config", read_needed_bytes)
            if len(data) < STANDARD_BYTES and not host.recorded:
                data = _from_reader(device.address, data)
            yield device._replace(config=parse_config(data))
        except Unknown as error:
            yield device._replace(config_error=str(error))


def _from_reader(address: str, own: bytes) -> bytes:
    """The device's registers by laggard's reader; `own`, where it does not answer."""
    from laggard.probes.host.reader import NoReader, ask  # sockets are slow to import, and root needs none

    try:
        return ask(f"pci_config {address}")
    except NoReader:
        return own


def with_numa_nodes(host: Host, devices: Iterable[PciDevice]) -> Iterator[PciDevice]:
    for device in devices:
        yield device._replace(numa_node=host.number(f"{device.folder}/numa_node"))


def _listed(host: Host) -> Iterator[PciDevice]:
    """Yields the entries of /sys/bus/pci/devices: symlinks whose targets name the bridges above."""
    for name in filter(_ADDRESS.fullmatch, if_present(host.entries, _DEVICES) or ()):
        yield _entry(host, name)


def _entry(host: Host, name: str) -> PciDevice:
    try:
        parts = [part for part in host.read_link(f"{_DEVICES}/{name}").split("/") if part]
    except Unknown:  # a recording with folders in place of the symlinks
        return PciDevice(name, parent_known=False, folder=f"{_DEVICES}/{name}")
    above = parts[-2] if len(parts) > 1 else ""
    start = next((index for index, part in enumerate(parts) if part == "devices"), 0)
    return PciDevice(name, above if _ADDRESS.fullmatch(above) else None, folder="/sys/" + "/".join(parts[start:]))


def _in_buses(host: Host) -> Iterator[PciDevice]:
    """Yields devices below /sys/class/pci_bus/BUS/device, for machines of which only that was recorded."""
    for bus in if_present(host.entries, _BUSES) or ():
        folder = f"{_BUSES}/{bus}/device"
        for name in filter(_ADDRESS.fullmatch, host.names(folder)):
            yield PciDevice(name, parent_known=False, folder=f"{folder}/{name}")


def _identified(host: Host, entry: PciDevice) -> PciDevice:
    vendor, device, pci_class = _identity(host, entry.folder)
    names: frozenset[str] = frozenset()
    if pci_class is None or pci_class >> 8 in _WITH_FUNCTIONS:
        paths = dict.fromkeys((entry.folder, f"{_DEVICES}/{entry.address}"))
        names = frozenset(name for path in paths for name in host.names(path))
    return entry._replace(
        pci_class=pci_class,
        vendor=vendor,
        device=device,
        subsystems=names.intersection(_SUBSYSTEMS),
        virtual_function="physfn" in names,
    )


def _identity(host: Host, folder: str) -> tuple[int | None, int | None, int | None]:
    """Returns vendor, device, and class with subclass; from the one file modalias where it exists, else from three."""
    if found := _MODALIAS.match(host.text(f"{folder}/modalias")):
        return int(found[1], 16), int(found[2], 16), int(found[3] + found[4], 16)
    vendor, device, pci_class = (host.number(f"{folder}/{name}", 16) for name in ("vendor", "device", "class"))
    return vendor, device, None if pci_class is None else pci_class >> 8


def _link(host: Host, folder: str) -> LinkState:
    speed, width = _number(host, f"{folder}/current_link_speed"), _number(host, f"{folder}/current_link_width")
    max_speed, max_width = _number(host, f"{folder}/max_link_speed"), _number(host, f"{folder}/max_link_width")
    # 255: the kernel prints it where there is no link
    width, max_width = (0 if value >= 255 else int(value) for value in (width, max_width))
    return LinkState(speed, width, max_speed, max_width)


def _number(host: Host, path: str) -> float:
    """Returns the number that the file begins with; 0 where it begins with none (`Unknown`) or cannot be read."""
    try:
        found = re.match(r"\d{1,4}(\.\d{1,3})?(?![\d.])", host.read(path))
    except Unknown:
        return 0.0
    return float(found[0]) if found else 0.0
