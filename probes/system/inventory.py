"""The devices that this machine has and how they are set: facts only, which the collector compares with those of other
nodes.

Nothing is judged here, so what a device does not report is left out; other probes judge its links, ports and addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable, split_unreadable
from laggard.probes.gpu.model.pci_devices import NO_TREE, find_nvidia_devices
from laggard.probes.host.host import Host
from laggard.probes.probe import KERNEL, Fact, Probe, Thresholds
from laggard.probes.rdma.model.gid_table import read_gids
from laggard.probes.rdma.model.sysfs import RDMA, device_names, is_software_device, read_ports

_PCI = "/sys/bus/pci/devices"


class InventoryThresholds(Thresholds, frozen=True):
    """Nothing is judged."""


Entry = tuple[str, Any]
"""The name of a device (or port, or file), and its value in a fact of this probe."""


def check(host: Host, thresholds: InventoryThresholds) -> Iterator[Finding | Fact | Unreadable]:
    for name, read in (("rdma", _rdma), ("gpu_links", _gpu_links), ("gid_layouts", _gid_layouts)):
        found: dict[str, Any] = {}
        try:
            for entry in read(host):
                if isinstance(entry, Unreadable):
                    yield entry
                else:
                    found[entry[0]] = entry[1]
        except NotApplicable:
            continue
        except Unknown as error:
            yield Unreadable(str(error))
        if found:
            yield Fact(name, found)


def _rdma(host: Host) -> Iterator[Entry | Unreadable]:
    for name in device_names(host):
        if not is_software_device(host, name):
            device = f"{RDMA}/{name}"
            files = {
                "firmware": f"{device}/fw_ver",
                "type": f"{device}/hca_type",
                "board": f"{device}/board_id",
                "link_width": f"{device}/device/current_link_width",
            }
            texts, unread = split_unreadable(_first_lines(host, files))
            mtus, unread_mtus = split_unreadable(_mtus(host, f"{device}/device/net"))
            mtu = {"mtu": sorted({text for _, text in mtus})} if mtus else {}
            yield name, {**dict(texts), **mtu}
            yield from (*unread, *unread_mtus)


def _mtus(host: Host, folder: str) -> Iterator[Entry | Unreadable]:
    try:
        names = host.entries(folder)
    except NotFound:  # InfiniBand without IPoIB, or the network device is in another network namespace
        return
    yield from _first_lines(host, {name: f"{folder}/{name}/mtu" for name in names})


def _gpu_links(host: Host) -> Iterator[Entry | Unreadable]:
    """Yields the width only: the speed goes down on an idle GPU, and comes back."""
    pci = find_nvidia_devices(host)
    if not pci.shown:
        raise Unknown(NO_TREE)
    for address in pci.gpus:
        texts, unread = split_unreadable(_first_lines(host, {"width": f"{_PCI}/{address}/current_link_width"}))
        yield address, dict(texts)
        yield from unread


def _gid_layouts(host: Host) -> Iterator[Entry | Unreadable]:
    """Yields for each RoCE port which address is at which index: NCCL_IB_GID_INDEX is one number for all nodes."""
    for port in read_ports(host).ports:
        if port.active and port.ethernet:
            gids = read_gids(host, port)
            yield port.name, ", ".join(f"{gid.number}: {gid.type} {gid.scope}" for gid in gids)


def _first_lines(host: Host, files: Mapping[str, str]) -> Iterator[Entry | Unreadable]:
    """Reads the first line of each file, by a name. Files that are not there, or are empty, are left out."""
    for name, path in files.items():
        try:
            text = host.read(path).strip()
        except NotFound:
            continue
        except Unknown as error:
            yield Unreadable(str(error))
            continue
        if text:
            yield name, text.splitlines()[0]


PROBE: Final = Probe("inventory", check, InventoryThresholds(), group=KERNEL)
