"""PCIE_LINK_DEGRADED: a link between a GPU or RDMA NIC and the root that runs slower or narrower than it should."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.amd_gpus import busy_amd_gpus
from laggard.probes.gpu.model.readings import gpus_are_held, query_gpus
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.nvml.model import Gpu
from laggard.probes.pci.model.sysfs import read_tree, select_endpoints, with_config, with_links
from laggard.probes.pci.model.tree import PciDevice, PciTree
from laggard.probes.pci.rules.slow_links import (
    PcieLink,
    SlowLink,
    as_seen_by_a_guest,
    find_slow_links,
    links_to_root,
    unjudged_links,
)
from laggard.probes.probe import PCI, Fact, Probe, Thresholds, finding

_FIX = (
    "Reseat the card, riser or cable and check the slot's settings in the firmware (link speed, bifurcation). If that "
    "does not help, replace the device, then the board. A speed that was set too low by hand is reset by a restart."
)
_IDLE: Final = 1  # nvmlClocksEventReasonGpuIdle
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
    ends = tuple(end for end in select_endpoints(tree, thresholds.endpoints) if not end.virtual_function)
    if not ends:
        raise NotApplicable("the only GPUs and RDMA NICs are virtual functions, which have no link of their own")
    tree = tree.updated(with_links(host, _paths_to_root(tree, ends)))
    tree = tree.updated(with_config(host, _ports_of_slowed_gpus(tree, ends)))
    virtual = is_virtual_machine(host) if thresholds.virtual is None else thresholds.virtual
    links = links_to_root(tree, ends)
    yield Fact("links", {link.device.address: _shown(link.speed, link.width) for link in links})
    if virtual is not False:
        links = as_seen_by_a_guest(links)
    yield from judge(links, thresholds, _at_work(host) if _speeds_of_gpus_differ(links) else ())
    if virtual:
        unknown = yield from _without_measure(links, thresholds)
    else:
        unknown = unjudged_links(links)
    if unknown:
        raise Unknown(f"{len(unknown)} links cannot be judged, that of {unknown[0]} for one: no speed, width or peer")
    if unidentified := [device.address for device in tree if device.pci_class is None and not device.subsystems]:
        raise Unknown(
            f"the class of {unidentified[0]} and {len(unidentified) - 1} others cannot be read: some may be GPUs"
        )


def judge(
    links: tuple[PcieLink, ...], thresholds: PcieLinkThresholds, at_work: Collection[str] | None = None
) -> Iterator[Finding]:
    """Judges links of sysfs or of `lspci`; `at_work` as find_slow_links() takes it. Pure."""
    for slow in find_slow_links(links, thresholds.expected, at_work):
        yield _finding(slow)


def _without_measure(
    links: tuple[PcieLink, ...], thresholds: PcieLinkThresholds
) -> Generator[Fact, None, tuple[str, ...]]:
    """Returns a guest's links of which nothing is known. Links below their own maximum, without peers, are a fact: the
    slot may have no more (an AWS g6e.2xlarge gives its L40S 8 of 16 lanes). Raises NotApplicable where all are so."""
    unjudged = {address for address in unjudged_links(links) if address not in thresholds.expected}
    below = [
        link.device.address
        for link in links
        if link.device.address in unjudged and link.speed and link.width and link.device.link.max_width
    ]
    if below:
        yield Fact("below_their_own_maximum", below)
        if len(below) == len(links):
            raise NotApplicable(
                f"the hypervisor hides the slots: {len(below)} links run at less than their devices can, "
                "which may be all that the slots have"
            )
    return tuple(sorted(unjudged.difference(below)))


def _speeds_of_gpus_differ(links: Iterable[PcieLink]) -> bool:
    return len({(link.peer_key, link.speed) for link in links if link.device.is_gpu}) > len(
        {link.peer_key for link in links if link.device.is_gpu}
    )


def _at_work(host: Host) -> tuple[str, ...]:
    """Returns the addresses of the GPUs that compute now, by NVML or amdgpu; none where these do not say. NVML is not
    asked where nobody holds a GPU: to start them would take longer than this probe may."""
    try:
        gpus = query_gpus(host) if host.recorded or gpus_are_held(host, 1) else ()
    except (Unknown, NotApplicable):
        gpus = ()
    of_nvidia = tuple(gpu.bus_id for gpu in gpus if gpu.bus_id and gpu.processes and not _is_idle(gpu))
    return of_nvidia + busy_amd_gpus(host)


def _is_idle(gpu: Gpu) -> bool:
    return gpu.clocks_event_reasons is None or bool(gpu.clocks_event_reasons & _IDLE)


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


PROBE: Final = Probe("pcie_links", check, PcieLinkThresholds(), group=PCI)
