"""PCIE_LINK_DEGRADED: a link between a GPU or RDMA NIC and the root that runs slower or narrower than it should."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.amd_gpus import busy_amd_gpus
from laggard.probes.gpu.model.readings import IDLE, gpus_are_held, known_gpus
from laggard.probes.host.host import Host
from laggard.probes.pci.model.sysfs import VirtualThresholds, read_tree, select_endpoints, with_config, with_links
from laggard.probes.pci.model.tree import AMD, PciDevice, PciTree
from laggard.probes.probe import PCI, Fact, Probe, say

# The PCIe links that run slower or narrower than they should. Pure rules over a PciTree.
#
# The measure of a link is the profile; else what both of its ends can do, where both are seen; else what most of its
# peers do (the same model in the same role on this node). Below what both ends can do, a NIC's link is at fault, in
# speed and in width. Peers alone are a hint: a slot may have fewer lanes than its neighbours by design. A GPU lowers
# the speed of its link when it is idle (nvidia-smi's manual: "may be reduced when the GPU is not in use"): its width
# counts, and its speed only where its port is set to less, or where most peers that do as it does run faster: that work
# as well, or are idle as well. So does the link above the bridges that are a part of an AMD GPU.

_MIN_PEERS: Final = 3

Doing: TypeAlias = Mapping[str, Hashable]
"""By a GPU's address what it does now: the same for those that do the same."""


class PcieLink(NamedTuple):
    """One link: its lower end, its upper end where that is known, and the endpoints whose traffic it carries."""

    device: PciDevice
    port: PciDevice | None
    serves: tuple[str, ...]

    @property
    def speed(self) -> float:
        return self.device.link.speed or (self.port.link.speed if self.port else 0.0)

    @property
    def width(self) -> int:
        return self.device.link.width or (self.port.link.width if self.port else 0)

    @property
    def max_speed(self) -> float:
        """What both ends can do; 0 where one of them is not seen, or does not say."""
        return min(self.device.link.max_speed, self.port.link.max_speed) if self.port else 0.0

    @property
    def max_width(self) -> int:
        """What both ends can do; 0 where one of them is not seen, or does not say."""
        return min(self.device.link.max_width, self.port.link.max_width) if self.port else 0

    @property
    def is_at_the_devices_maximum(self) -> bool:
        own = self.device.link
        return bool(own.max_speed and own.max_width) and self.speed >= own.max_speed and self.width >= own.max_width

    @property
    def peer_key(self) -> Hashable:
        """Links with the same key are peers: they do the same work with the same hardware."""
        device = self.device
        return device.is_gpu, device.is_rdma_nic, device.hardware


class SlowLink(msgspec.Struct, frozen=True):
    """A link whose `quantity` (speed in GT/s, or width in lanes) is `value` and should be `expected`. `reason`
    completes the sentence that begins with the expected value."""

    link: PcieLink
    quantity: str
    value: float
    expected: float
    reason: str
    severity: Severity


def links_to_root(tree: PciTree, endpoints: Iterable[PciDevice]) -> tuple[PcieLink, ...]:
    """Returns the links between the endpoints and the root, each once. On the path up every second step is a link: the
    others are inside a switch."""
    serves: dict[str, list[str]] = {}
    for endpoint in endpoints:
        for device in tree.path_to_root(endpoint.address)[::2]:
            serves.setdefault(device.address, []).append(endpoint.address)
    return tuple(_link(tree, address, tuple(whom)) for address, whom in sorted(serves.items()))


def _link(tree: PciTree, address: str, serves: tuple[str, ...]) -> PcieLink:
    device = tree.devices[address]
    return PcieLink(device, tree.devices.get(device.parent or ""), serves)


def as_seen_by_a_guest(links: Iterable[PcieLink]) -> tuple[PcieLink, ...]:
    """Returns the links without their upper ends, which the hypervisor makes up, and without the virtual functions:
    their link registers are zero (SR-IOV 3.5.4), which a guest sees as a known maximum and no width."""
    return tuple(link._replace(port=None) for link in links if link.device.link.width or not link.device.link.max_width)


def unjudged_links(links: Iterable[PcieLink]) -> tuple[str, ...]:
    """Returns the lower ends of links whose speed or width is not known, or has nothing to be compared with."""
    all_of_them = tuple(links)
    return tuple(
        link.device.address
        for link in all_of_them
        if not (link.speed and link.width)
        or not (
            (link.max_speed and link.max_width)
            or link.is_at_the_devices_maximum
            or _majority(link, all_of_them, lambda it: it.speed * it.width)
        )
    )


def find_slow_links(
    links: Iterable[PcieLink], expected: Mapping[str, tuple[float, int]], doing: Doing | None = None
) -> Iterator[SlowLink]:
    """`expected`: speed and width by the address of the link's lower end, from the profile. `doing`: what the GPUs do
    now; None: not known, and all may do the same."""
    known = tuple(link for link in links if link.speed and link.width)
    of_gpus = {link: [doing.get(end) for end in link.serves] if doing is not None else [] for link in known}
    for link in known:
        address = link.device.address
        if address in expected:
            yield from _against_profile(link, *expected[address])
            continue
        yield from _judge(link, "width", link.width, link.max_width, _majority(link, known, lambda it: it.width))
        if link.device.is_gpu or link.device.vendor == AMD:  # ATI's number: its only bridges are those of its GPUs
            alike = tuple(it for it in known if of_gpus[it] == of_gpus[link] and None not in of_gpus[it])
            yield from _gpu_speed(link, _majority(link, alike, lambda it: it.speed))
        else:
            yield from _judge(link, "speed", link.speed, link.max_speed, _majority(link, known, lambda it: it.speed))


def _against_profile(link: PcieLink, speed: float, width: int) -> Iterator[SlowLink]:
    reason = "is what the profile asks for"
    if link.width < width:
        yield SlowLink(link, "width", link.width, width, reason, Severity.CRITICAL)
    if link.speed < speed:
        yield SlowLink(link, "speed", link.speed, speed, reason, Severity.CRITICAL)


def _judge(link: PcieLink, quantity: str, value: float, limit: float, peers: float) -> Iterator[SlowLink]:
    if limit and value < limit:
        if peers and value >= peers:
            reason = "is what both ends can do; its peers run alike"
            yield SlowLink(link, quantity, value, limit, reason, Severity.WARNING)
        else:
            yield SlowLink(link, quantity, value, limit, "is what both ends can do", Severity.CRITICAL)
    elif peers and value < peers and not limit:
        yield SlowLink(link, quantity, value, peers, "is what most of its peers have", Severity.WARNING)


def _gpu_speed(link: PcieLink, peers: float) -> Iterator[SlowLink]:
    speed, limit = link.speed, link.max_speed
    express = link.port.config.express if link.port else None
    if limit and express and 0 < express.target_speed < limit:
        reason = f"is what both ends can do, and the port is set to {express.target_speed:g}"
        yield SlowLink(link, "speed", min(speed, express.target_speed), limit, reason, Severity.WARNING)
    elif peers and speed < peers and (not limit or speed < limit):
        yield SlowLink(link, "speed", speed, peers, "is what most of its peers have now", Severity.WARNING)


def _majority(link: PcieLink, others: tuple[PcieLink, ...], value: Callable[[PcieLink], float]) -> float:
    """Returns the value of most of the link's peers, itself included; 0 without a majority of at least three."""
    peers = [other for other in others if other.peer_key == link.peer_key]
    return majority((value(other) for other in peers), _MIN_PEERS) or 0


class PcieLinkThresholds(VirtualThresholds, frozen=True):
    expected: dict[str, tuple[float, int]] = {}
    """GT/s and lanes by the PCI address of a link's lower end, as {"0000:1a:00.0": [32.0, 16]}."""


def check(host: Host, thresholds: PcieLinkThresholds) -> Iterator[Finding | Fact]:
    tree = read_tree(host)
    ends = tuple(end for end in select_endpoints(tree, thresholds.endpoints) if not end.virtual_function)
    if not ends:
        raise NotApplicable("the only GPUs and RDMA NICs are virtual functions, which have no link of their own")
    tree = tree.updated(with_links(host, tree.paths_to_root(ends)))
    tree = tree.updated(with_config(host, _ports_of_slowed_gpus(tree, ends)))
    virtual = thresholds.is_virtual_machine(host)
    links = links_to_root(tree, ends)
    yield Fact("links", {link.device.address: _shown(link.speed, link.width) for link in links})
    if virtual is not False:
        links = as_seen_by_a_guest(links)
    yield from judge(links, thresholds, _doing(host) if _speeds_of_gpus_differ(links) else {})
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


def judge(links: tuple[PcieLink, ...], thresholds: PcieLinkThresholds, doing: Doing | None = None) -> Iterator[Finding]:
    """Judges links of sysfs or of `lspci`; `doing` as find_slow_links() takes it. Pure."""
    return map(_finding, find_slow_links(links, thresholds.expected, doing))


def _without_measure(
    links: tuple[PcieLink, ...], thresholds: PcieLinkThresholds
) -> Generator[Fact, None, tuple[str, ...]]:
    """Returns a guest's links of which nothing is known. Links below their own maximum, without peers, are a fact: the
    slot may have no more (an AWS g6e.2xlarge gives its L40S 8 of 16 lanes). Raises NotApplicable where all are so."""
    unjudged = {address for address in unjudged_links(links) if address not in thresholds.expected}
    known = (link.device for link in links if link.speed and link.width)
    below = [device.address for device in known if device.address in unjudged and device.link.max_width]
    if below:
        yield Fact("below_their_own_maximum", below)
        if len(below) == len(links):
            raise NotApplicable(
                f"the hypervisor hides the slots: {len(below)} links run at less than their devices can, "
                "which may be all that the slots have"
            )
    return tuple(sorted(unjudged.difference(below)))


def _speeds_of_gpus_differ(links: Iterable[PcieLink]) -> bool:
    speeds = {(link.peer_key, link.speed) for link in links if link.device.is_gpu}
    return len(speeds) > len({key for key, _ in speeds})


def _doing(host: Host) -> Doing:
    """What the GPUs do, by NVML or amdgpu, as far as these say. NVIDIA's take their links down while they are idle,
    each for itself: they are compared at work alone. NVML is not asked where nobody holds a GPU: to start them would
    take longer than this probe may."""
    gpus = known_gpus(host) if host.recorded or gpus_are_held(host, 1) else ()
    in_use = (gpu for gpu in gpus if gpu.processes and gpu.clocks_event_reasons is not None)
    at_work = (gpu.bus_id for gpu in in_use if not (gpu.clocks_event_reasons or 0) & IDLE)
    of_nvidia = dict.fromkeys(filter(None, at_work), True)
    return {**of_nvidia, **busy_amd_gpus(host)}


def _ports_of_slowed_gpus(tree: PciTree, ends: Iterable[PciDevice]) -> list[PciDevice]:
    """Returns the ports of GPUs whose links are slower now than they could be, to find whether a port is set so."""
    slowed = (link for link in links_to_root(tree, ends) if link.device.is_gpu and link.speed < link.max_speed)
    return [link.port for link in slowed if link.port]


def _finding(slow: SlowLink) -> Finding:
    link = slow.link
    device, port = link.device, link.port
    evidence: dict[str, Any] = {
        "runs_at": _shown(link.speed, link.width),
        "both_ends_can": _shown(link.max_speed, link.max_width),
        "serves": list(link.serves),
    }
    users = "" if link.serves == (device.address,) else f" on the path of {', '.join(link.serves[:4])}"
    told = {
        "users": users,
        "value": f"{slow.value:g}",
        "unit": "GT/s" if slow.quantity == "speed" else "lanes",
        "expected": f"{slow.expected:g}",
        "reason": slow.reason,
    }
    kind = "link_port" if port else "link"
    addresses = {"address": device.address, "port": port.address if port else ""}
    return say("pci", kind, device.address, evidence, slow.severity, **told, **addresses)


def _shown(speed: float, width: int) -> str:
    return f"{speed:g} GT/s x{width}" if speed and width else "unknown"


PROBE: Final = Probe("pcie_links", check, PcieLinkThresholds(), group=PCI)
