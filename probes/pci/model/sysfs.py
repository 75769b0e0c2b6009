"""PCI devices as /sys shows them. What a probe needs of a device is read for the devices it judges, and no more:
the list of devices, then links, then configuration space."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.pci.model.config_space import needed_bytes, parse_config
from laggard.probes.pci.model.tree import Link, PciDevice, PciTree

_DEVICES: Final = "/sys/bus/pci/devices"
_BUSES: Final = "/sys/class/pci_bus"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_USES: Final = ("infiniband", "net", "nvme")
_NETWORK: Final = 0x02
_MODALIAS: Final = re.compile(
    r"pci:v([0-9A-F]{8})d([0-9A-F]{8})sv[0-9A-F]{8}sd[0-9A-F]{8}bc([0-9A-F]{2})sc([0-9A-F]{2})"
)


def read_tree(host: Host) -> PciTree:
    """All devices, with parents and kinds. Raises Unknown where there is no list of them."""
    listed = {place.address: place for place in _listed(host)}
    if not listed or not all(place.placed for place in listed.values()):
        listed.update((place.address, place) for place in _in_buses(host))
    if not listed:
        raise Unknown(f"{_DEVICES} lists no device: this is no machine, or a part of one")
    return PciTree({address: _device(host, listed[address]) for address in sorted(listed)})


def endpoints(host: Host, tree: PciTree, named: Iterable[str] = ()) -> tuple[PciDevice, ...]:
    """GPUs and RDMA NICs, or the devices that the profile names. Raises NotApplicable where there is none."""
    missing = [address for address in named if address not in tree.devices]
    if missing:
        raise Unknown(f"the profile's endpoint {missing[0]} is not on this machine's PCI bus")
    chosen = tuple(tree.devices[address] for address in named) or tree.endpoints()
    if chosen:
        return chosen
    if unknown := [device.address for device in tree if device.kind is None]:
        raise Unknown(f"the class of {len(unknown)} PCI devices cannot be read, of {unknown[0]} for one")
    raise NotApplicable(f"none of the {len(tree.devices)} PCI devices is a GPU or an RDMA NIC")


def with_links(host: Host, devices: Iterable[PciDevice]) -> Iterator[PciDevice]:
    for device in devices:
        yield device._replace(link=_link(host, device.folder))


def with_config(host: Host, devices: Iterable[PciDevice]) -> Iterator[PciDevice]:
    """Without root the kernel shows 64 bytes: then the registers beyond are not known, and the device says so."""
    for device in devices:
        try:
            data = host.read_parts(f"{device.folder}/config", needed_bytes)
            yield device._replace(config=parse_config(data))
        except Unknown as error:
            yield device._replace(why_no_config=str(error))


def with_nodes(host: Host, devices: Iterable[PciDevice]) -> Iterator[PciDevice]:
    for device in devices:
        yield device._replace(node=_integer(host, f"{device.folder}/numa_node", 10))


class _Place(NamedTuple):
    address: str
    folder: str
    parent: str | None = None
    placed: bool = False  # it is known what is above


def _listed(host: Host) -> Iterator[_Place]:
    """Each entry is a symlink whose path names the bridges above."""
    try:
        names = host.entries(_DEVICES)
    except NotFound:
        return
    for name in names:
        if _ADDRESS.fullmatch(name):
            yield _placed(host, name)


def _placed(host: Host, name: str) -> _Place:
    try:
        parts = [part for part in host.read_link(f"{_DEVICES}/{name}").split("/") if part]
    except Unknown:  # a recording that keeps folders here
        return _Place(name, f"{_DEVICES}/{name}")
    above = parts[-2] if len(parts) > 1 else ""
    start = next((index for index, part in enumerate(parts) if part == "devices"), 0)
    return _Place(name, "/sys/" + "/".join(parts[start:]), above if _ADDRESS.fullmatch(above) else None, True)


def _in_buses(host: Host) -> Iterator[_Place]:
    """Devices below /sys/class/pci_bus/BUS/device, for machines of which only that was recorded."""
    try:
        buses = host.entries(_BUSES)
    except NotFound:
        return
    for bus in buses:
        try:
            names = host.entries(f"{_BUSES}/{bus}/device")
        except Unknown:
            continue
        yield from (_Place(name, f"{_BUSES}/{bus}/device/{name}") for name in names if _ADDRESS.fullmatch(name))


def _device(host: Host, place: _Place) -> PciDevice:
    vendor, device, kind = _identity(host, place.folder)
    may_serve = kind is None or kind >> 8 == _NETWORK
    uses = frozenset(_uses(host, place)) if may_serve else frozenset[str]()
    parent, placed, folder = place.parent, place.placed, place.folder
    return PciDevice(place.address, parent, kind, vendor, device, uses, placed=placed, folder=folder)


def _identity(host: Host, folder: str) -> tuple[int | None, int | None, int | None]:
    """Vendor, device, class and subclass; from one file, where there is that file."""
    try:
        found = _MODALIAS.match(host.read(f"{folder}/modalias"))
    except Unknown:
        found = None
    if found:
        return int(found[1], 16), int(found[2], 16), int(found[3] + found[4], 16)
    kind = _integer(host, f"{folder}/class", 16)
    vendor, device = _integer(host, f"{folder}/vendor", 16), _integer(host, f"{folder}/device", 16)
    return vendor, device, None if kind is None else kind >> 8


def _uses(host: Host, place: _Place) -> Iterator[str]:
    for path in dict.fromkeys((place.folder, f"{_DEVICES}/{place.address}")):
        try:
            yield from (name for name in host.entries(path) if name in _USES)
        except Unknown:
            continue


def _link(host: Host, folder: str) -> Link:
    speed, width = _number(host, f"{folder}/current_link_speed"), _number(host, f"{folder}/current_link_width")
    most_speed, most_width = _number(host, f"{folder}/max_link_speed"), _number(host, f"{folder}/max_link_width")
    # 255: what the kernel prints where there is no link to ask about
    width, most_width = (0 if value >= 255 else int(value) for value in (width, most_width))
    return Link(speed, width, most_speed, most_width)


def _number(host: Host, path: str) -> float:
    """The number that the file begins with; 0 where it begins with none (`Unknown`) or cannot be read."""
    try:
        found = re.match(r"\d{1,4}(\.\d{1,3})?(?![\d.])", host.read(path))
    except Unknown:
        return 0.0
    return float(found[0]) if found else 0.0


def _integer(host: Host, path: str, base: int) -> int | None:
    try:
        return int(host.read(path), base)
    except (Unknown, ValueError):
        return None
