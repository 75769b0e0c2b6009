"""The devices that this machine has and how they are set: facts only, which the collector compares with those of other
nodes.

Nothing is judged here, so what a device does not report is left out; other probes judge its links, ports and addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable, raise_if_unreadable
from laggard.probes.gpu.model.pci_devices import NO_TREE, find_nvidia_devices
from laggard.probes.host.host import Host
from laggard.probes.probe import KERNEL, Fact, Probe, Thresholds
from laggard.probes.rdma.model.gid_table import read_gids
from laggard.probes.rdma.model.sysfs import RDMA, device_names, is_software_device, read_ports

_PCI = "/sys/bus/pci/devices"


class InventoryThresholds(Thresholds, frozen=True):
    """Nothing is judged."""


class Entry(NamedTuple):
    """One device (or port) in a fact of this probe."""

    name: str
    value: Any
    unreadable: tuple[Unreadable, ...] = ()


class FirstLines(NamedTuple):
    """The first lines of several small files."""

    texts: dict[str, str]
    unreadable: tuple[Unreadable, ...]


def check(host: Host, thresholds: InventoryThresholds) -> Iterator[Finding | Fact]:
    unreadable: list[Unreadable] = []
    for name, read in (("rdma", _rdma), ("gpu_links", _gpu_links), ("gid_layouts", _gid_layouts)):
        found: dict[str, Any] = {}
        try:
            for entry in read(host):
                found[entry.name] = entry.value
                unreadable += entry.unreadable
        except NotApplicable:
            continue
        except Unknown as error:
            unreadable.append(Unreadable(str(error)))
        if found:
            yield Fact(name, found)
    raise_if_unreadable(unreadable)


def _rdma(host: Host) -> Iterator[Entry]:
    for name in device_names(host):
        if not is_software_device(host, name):
            device = f"{RDMA}/{name}"
            files = {
                "firmware": f"{device}/fw_ver",
                "type": f"{device}/hca_type",
                "board": f"{device}/board_id",
                "link_width": f"{device}/device/current_link_width",
            }
            read, mtus = _first_lines(host, files), _mtus(host, f"{device}/device/net")
            mtu = {"mtu": sorted(set(mtus.texts.values()))} if mtus.texts else {}
            yield Entry(name, {**read.texts, **mtu}, (*read.unreadable, *mtus.unreadable))


def _mtus(host: Host, folder: str) -> FirstLines:
    try:
        names = host.entries(folder)
    except NotFound:  # InfiniBand without IPoIB, or the network device is in another network namespace
        return FirstLines({}, ())
    return _first_lines(host, {name: f"{folder}/{name}/mtu" for name in names})


def _gpu_links(host: Host) -> Iterator[Entry]:
    """Yields the width only: the speed goes down on an idle GPU, and comes back."""
    pci = find_nvidia_devices(host)
    if not pci.shown:
        raise Unknown(NO_TREE)
    for address in pci.gpus:
        read = _first_lines(host, {"width": f"{_PCI}/{address}/current_link_width"})
        yield Entry(address, read.texts, read.unreadable)


def _gid_layouts(host: Host) -> Iterator[Entry]:
    """Yields for each RoCE port which address is at which index: NCCL_IB_GID_INDEX is one number for all nodes."""
    for port in read_ports(host).ports:
        if port.active and port.ethernet:
            gids = read_gids(host, port)
            yield Entry(port.name, ", ".join(f"{gid.number}: {gid.type} {gid.scope}" for gid in gids))


def _first_lines(host: Host, files: Mapping[str, str]) -> FirstLines:
    """Reads the files, by a name for each. Files that are not there, or are empty, are left out."""
    texts: dict[str, str] = {}
    unreadable: list[Unreadable] = []
    for name, path in files.items():
        try:
            text = host.read(path).strip()
        except NotFound:
            continue
        except Unknown as error:
            unreadable.append(Unreadable(str(error)))
            continue
        if text:
            texts[name] = text.splitlines()[0]
    return FirstLines(texts, tuple(unreadable))


PROBE: Final = Probe("inventory", check, InventoryThresholds(), group=KERNEL)
