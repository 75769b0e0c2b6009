"""PCIE_LINK_DEGRADED: a link between a GPU or RDMA NIC and the root that runs slower or narrower than it should."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.pci.model.sysfs import read_tree, select_endpoints, with_config, with_links
from laggard.probes.pci.model.tree import PciDevice, PciTree
from laggard.probes.pci.rules.slow_links import PcieLink, SlowLink, find_slow_links, links_to_root, unjudged_links
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX = (
    "Reseat the card, riser or cable and check the slot's settings in the firmware (link speed, bifurcation). If that "
    "does not help, replace the device, then the board. A speed that was set too low by hand is reset by a restart."
)
_LANE_BYTES_PER_TRANSFER = {2.5: 0.8 / 8, 5.0: 0.8 / 8, 64.0: 1 / 8}  # 8b/10b, flits; the speeds between: 128b/130b


class PcieLinkThresholds(Thresholds, frozen=True):
    endpoints: tuple[str, ...] = ()
    """PCI addresses of the devices to judge, with the bridges above them. None named: all GPUs and RDMA NICs."""

    virtual: bool | None = None
    """This is a virtual machine, whose ports are made up. None: decided by what the kernel reports."""

    expected: dict[str, tuple[float, int]] = {}
    """GT/s and lanes by the PCI address of a link's lower end, as {"0000:1a:00.0": [32.0, 16]}."""


def check(host: Host, thresholds: PcieLinkThresholds) -> Iterator[Finding | Fact]:
    tree = read_tree(host)
    ends = select_endpoints(tree, thresholds.endpoints)
    tree = tree.updated(with_links(host, _paths_to_root(tree, ends)))
    tree = tree.updated(with_config(host, _ports_of_slowed_gpus(tree, ends)))
    links = links_to_root(tree, ends)
    yield Fact("links", {link.device.address: _shown(link.speed, link.width) for link in links})
    yield from judge(links, thresholds, is_virtual_machine(host) if thresholds.virtual is None else thresholds.virtual)
    if unknown := unjudged_links(links):
        raise Unknown(f"{len(unknown)} links cannot be judged, that of {unknown[0]} for one: no speed, width or peer")
    if unidentified := [device.address for device in tree if device.pci_class is None and not device.subsystems]:
        raise Unknown(
            f"the class of {unidentified[0]} and {len(unidentified) - 1} others cannot be read: some may be GPUs"
        )


def judge(links: tuple[PcieLink, ...], thresholds: PcieLinkThresholds, virtual: bool | None) -> Iterator[Finding]:
    """Judges links of sysfs or of `lspci`. Pure."""
    for slow in find_slow_links(links, thresholds.expected, virtual):
        yield _finding(slow)


def _paths_to_root(tree: PciTree, ends: Iterable[PciDevice]) -> list[PciDevice]:
    return list({device.address: device for end in ends for device in tree.path_to_root(end.address)}.values())


def _ports_of_slowed_gpus(tree: PciTree, ends: Iterable[PciDevice]) -> list[PciDevice]:
    """Returns the ports of GPUs whose links are slower now than they could be, to find whether a port is set so."""
    slowed = (link for link in links_to_root(tree, ends) if link.device.is_gpu and link.speed < link.max_speed)
    return [link.port for link in slowed if link.port]


def _finding(slow: SlowLink) -> Finding:
    link = slow.link
    unit = "GT/s" if slow.quantity == "speed" else "lanes"
    device, port = link.device, link.port
    evidence: dict[str, Any] = {
        "speed_gigatransfers_per_second": link.speed,
        "width_lanes": link.width,
        "most_speed_gigatransfers_per_second": link.max_speed or None,
        "most_width_lanes": link.max_width or None,
        "bytes_per_second": round(bytes_per_second(link.speed, link.width)),
        "above": port.address if port else None,
        "serves": list(link.serves),
    }
    users = "" if link.serves == (device.address,) else f" on the path of {', '.join(link.serves[:4])}"
    return finding(
        "PCIE_LINK_DEGRADED",
        device.address,
        f"link{users} runs at {slow.value:g} {unit}, {slow.expected:g} {slow.reason}",
        evidence=evidence,
        fix=_FIX,
        commands=(f"lspci -vvv -s {device.address}", *((f"lspci -vvv -s {port.address}",) if port else ())),
        severity=slow.severity,
    )


def bytes_per_second(speed: float, width: int) -> float:
    """Returns what the link carries in each direction, packet headers included."""
    return speed * 1e9 * width * _LANE_BYTES_PER_TRANSFER.get(speed, 128 / 130 / 8)


def _shown(speed: float, width: int) -> str:
    return f"{speed:g} GT/s x{width}" if speed and width else "unknown"


PROBE: Final = Probe("pcie_links", check, PcieLinkThresholds())
