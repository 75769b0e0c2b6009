"""Which devices this machine has and how they are set: facts alone, for the collector to compare with other nodes'.

Nothing here is judged, so what a device does not tell is left out; other probes judge its links, ports and addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.gpu.model.pci_devices import find_nvidia_devices
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds
from laggard.probes.rdma.model.gid_table import read_gids
from laggard.probes.rdma.model.port import RDMA
from laggard.probes.rdma.model.sysfs import device_names, is_soft, read_ports

_PCI = "/sys/bus/pci/devices"


class InventoryThresholds(Thresholds, frozen=True):
    """Nothing is judged."""


def check(host: Host, thresholds: InventoryThresholds) -> Iterator[Finding | Fact]:
    unreadable: list[str] = []
    for name, read in (("rdma", _rdma), ("gpu_links", _gpu_links), ("gid_layouts", _gid_layouts)):
        found: dict[str, Any] = {}
        try:
            found.update(read(host, unreadable))
        except NotApplicable:
            continue
        except Unknown as error:
            unreadable.append(str(error))
        if found:
            yield Fact(name, found)
    if unreadable:
        raise Unknown("; ".join(dict.fromkeys(unreadable)))


def _rdma(host: Host, unreadable: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in device_names(host):
        if not is_soft(host, name):
            device = f"{RDMA}/{name}"
            files = {
                "firmware": f"{device}/fw_ver",
                "type": f"{device}/hca_type",
                "board": f"{device}/board_id",
                "link_width": f"{device}/device/current_link_width",
            }
            yield name, {**_texts(host, files, unreadable), **_mtus(host, f"{device}/device/net", unreadable)}


def _mtus(host: Host, folder: str, unreadable: list[str]) -> dict[str, Any]:
    try:
        names = host.entries(folder)
    except NotFound:  # InfiniBand without IPoIB, or another network namespace has it
        return {}
    mtus = _texts(host, {name: f"{folder}/{name}/mtu" for name in names}, unreadable)
    return {"mtu": sorted(set(mtus.values()))} if mtus else {}


def _gpu_links(host: Host, unreadable: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The width alone: the speed goes down with an idle GPU, and comes back."""
    for address in find_nvidia_devices(host).gpus:
        yield address, _texts(host, {"width": f"{_PCI}/{address}/current_link_width"}, unreadable)


def _gid_layouts(host: Host, unreadable: list[str]) -> Iterator[tuple[str, str]]:
    """By RoCE port, what stands at which index, which NCCL_IB_GID_INDEX means on every node at once."""
    for port in read_ports(host).ports:
        if port.active and port.ethernet:
            gids = read_gids(host, port)
            yield port.name, ", ".join(f"{gid.number}: {gid.type} {gid.scope}" for gid in gids)


def _texts(host: Host, files: dict[str, str], unreadable: list[str]) -> dict[str, str]:
    """The first lines of those that are there and say something."""
    texts = {}
    for name, path in files.items():
        try:
            text = host.read(path).strip()
        except NotFound:
            continue
        except Unknown as error:
            unreadable.append(str(error))
            continue
        if text:
            texts[name] = text.splitlines()[0]
    return texts


PROBE: Final = Probe("inventory", check, InventoryThresholds())
