"""PCIE_LINK_DEGRADED: a link on a GPU's or RDMA NIC's way to the root that runs slower or narrower than it should."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.pci.model.sysfs import endpoints, read_tree, with_config, with_links
from laggard.probes.pci.model.tree import PciDevice, PciTree
from laggard.probes.pci.rules.slow_links import Segment, Slow, segments, slow_links, unjudged
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX = (
    "Seat the card, riser or cable anew and look at the slot's settings in the firmware (link speed, bifurcation). "
    "Where it stays, exchange the device, then the board. A speed set too low by hand is undone by a restart."
)
_LANE_BYTES_PER_TRANSFER = {2.5: 0.8 / 8, 5.0: 0.8 / 8, 64.0: 1 / 8}  # 8b/10b at first, later 128b/130b, then flits


class LinkThresholds(Thresholds, frozen=True):
    endpoints: tuple[str, ...] = ()
    """PCI addresses of the devices to judge, and the bridges above them. None named: all GPUs and RDMA NICs."""

    virtual: bool | None = None
    """Is this a virtual machine, whose ports are made up? None: what the kernel says."""

    expected: dict[str, tuple[float, int]] = {}
    """GT/s and lanes by PCI address of a link's lower end, as {"0000:1a:00.0": [32.0, 16]}."""


def check(host: Host, thresholds: LinkThresholds) -> Iterator[Finding | Fact]:
    tree = read_tree(host)
    ends = endpoints(host, tree, thresholds.endpoints)
    tree = tree.replaced(with_links(host, _on_the_way(tree, ends)))
    tree = tree.replaced(with_config(host, _above_lowered_gpus(tree, ends)))
    judged = segments(tree, tree_ends(tree, ends))
    yield Fact("links", {segment.device.address: _shown(segment.speed, segment.width) for segment in judged})
    yield from judge(judged, thresholds, is_virtual_machine(host) if thresholds.virtual is None else thresholds.virtual)
    if unknown := unjudged(judged):
        raise Unknown(f"{len(unknown)} links cannot be judged, that of {unknown[0]} for one: no speed, width or peer")
    if strangers := [device.address for device in tree if device.kind is None and not device.uses]:
        raise Unknown(f"what {strangers[0]} and {len(strangers) - 1} others are cannot be read: GPUs may be among them")


def judge(judged: tuple[Segment, ...], thresholds: LinkThresholds, virtual: bool | None) -> Iterator[Finding]:
    """Pure: also for what `lspci` printed."""
    for slow in slow_links(judged, thresholds.expected, virtual):
        yield _finding(slow)


def tree_ends(tree: PciTree, ends: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    return tuple(tree.devices[end.address] for end in ends)


def _on_the_way(tree: PciTree, ends: Iterable[PciDevice]) -> list[PciDevice]:
    return list({device.address: device for end in ends for device in tree.path(end.address)}.values())


def _above_lowered_gpus(tree: PciTree, ends: Iterable[PciDevice]) -> list[PciDevice]:
    """The ports of GPUs whose links are slower now than they could be: is it the port that is set so?"""
    lowered = (
        segment
        for segment in segments(tree, tree_ends(tree, ends))
        if segment.device.is_gpu and segment.speed < segment.most_speed
    )
    return [segment.port for segment in lowered if segment.port]


def _finding(slow: Slow) -> Finding:
    segment = slow.segment
    unit = "GT/s" if slow.what == "speed" else "lanes"
    device, port = segment.device, segment.port
    evidence: dict[str, Any] = {
        "speed_gigatransfers_per_second": segment.speed,
        "width_lanes": segment.width,
        "most_speed_gigatransfers_per_second": segment.most_speed or None,
        "most_width_lanes": segment.most_width or None,
        "bytes_per_second": round(bytes_per_second(segment.speed, segment.width)),
        "above": port.address if port else None,
        "serves": list(segment.serves),
    }
    whom = "" if segment.serves == (device.address,) else f" on the way of {', '.join(segment.serves[:4])}"
    return finding(
        "PCIE_LINK_DEGRADED",
        device.address,
        f"link{whom} runs at {slow.value:g} {unit}, {slow.should:g} {slow.reason}",
        evidence=evidence,
        fix=_FIX,
        commands=(f"lspci -vvv -s {device.address}", *((f"lspci -vvv -s {port.address}",) if port else ())),
        severity=slow.severity,
    )


def bytes_per_second(speed: float, width: int) -> float:
    """What the link carries in each direction, before packet headers."""
    return speed * 1e9 * width * _LANE_BYTES_PER_TRANSFER.get(speed, 128 / 130 / 8)


def _shown(speed: float, width: int) -> str:
    return f"{speed:g} GT/s x{width}" if speed and width else "unknown"


PROBE: Final = Probe("pcie_links", check, LinkThresholds())
