"""The PCIe links that run slower or narrower than they should. Pure rules over a PciTree.

The measure of a link is the profile; else what both of its ends can do, where both are seen; else what most of its
peers do (the same model in the same role on this node). Below what both ends can do, a NIC's link is at fault, in speed
and in width. Peers alone are a hint: a slot may have fewer lanes than its neighbours by design. A GPU lowers the speed
of its link when it is idle (nvidia-smi's manual: "may be reduced when the GPU is not in use"): its width counts, and
its speed only where its port is set to less, or where it works and peers that work run faster. So does the link above
the bridges that are a part of an AMD GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.kit.majority import majority
from laggard.model import Severity
from laggard.probes.pci.model.tree import AMD, PciDevice, PciTree

_MIN_PEERS: Final = 3


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


class SlowLink(NamedTuple):
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
            or _majority(link, all_of_them, _product)
        )
    )


def find_slow_links(
    links: Iterable[PcieLink], expected: Mapping[str, tuple[float, int]], at_work: Collection[str] | None = None
) -> Iterator[SlowLink]:
    """`expected`: speed and width by the address of the link's lower end, from the profile. `at_work`: the addresses of
    the GPUs that compute now; None: not known, and any may."""
    known = tuple(link for link in links if link.speed and link.width)
    working = tuple(link for link in known if at_work is None or any(end in at_work for end in link.serves))
    for link in known:
        address = link.device.address
        if address in expected:
            yield from _against_profile(link, *expected[address])
            continue
        yield from _judge(link, "width", link.width, link.max_width, _majority(link, known, _width))
        if link.device.is_gpu or link.device.vendor == AMD:  # ATI's number: its only bridges are those of its GPUs
            yield from _gpu_speed(link, _majority(link, working, _speed) if link in working else 0.0)
        else:
            yield from _judge(link, "speed", link.speed, link.max_speed, _majority(link, known, _speed))


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
    express = link.port.config.express if link.port and link.port.config else None
    if limit and express and 0 < express.target_speed < limit:
        reason = f"is what both ends can do, and the port is set to {express.target_speed:g}"
        yield SlowLink(link, "speed", min(speed, express.target_speed), limit, reason, Severity.WARNING)
    elif peers and speed < peers and (not limit or speed < limit):
        yield SlowLink(link, "speed", speed, peers, "is what most of its peers have now", Severity.WARNING)


def _majority(link: PcieLink, others: tuple[PcieLink, ...], value: Callable[[PcieLink], float]) -> float:
    """Returns the value of most of the link's peers, itself included; 0 without a majority of at least three."""
    peers = [other for other in others if other.peer_key == link.peer_key]
    return majority((value(other) for other in peers), _MIN_PEERS) or 0


def _speed(link: PcieLink) -> float:
    return link.speed


def _width(link: PcieLink) -> float:
    return link.width


def _product(link: PcieLink) -> float:
    return link.speed * link.width
