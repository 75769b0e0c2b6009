"""Which PCIe links run below what they should. Pure rules over a PciTree.

What a link should do is what the profile says; else what most of its peers do (the same model in the same role on
this node); else what both of its ends can do, whichever can less. A NIC's link below that is a fault, in speed as in
width. A GPU lowers its link's speed when it has nothing to do (nvidia-smi's manual: "may be reduced when the GPU is
not in use"), so there width counts, and speed only where its port is set to less, or where its peers run faster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.majority import majority
from laggard.model import Severity
from laggard.probes.pci.model.tree import PciDevice, PciTree

_FEWEST_PEERS: Final = 3


class Segment(NamedTuple):
    """One link: its lower end, its upper end where that is known, and for which endpoints' sake it is judged."""

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
    def most_speed(self) -> float:
        return _least(self.device.link.most_speed, self.port.link.most_speed if self.port else 0.0)

    @property
    def most_width(self) -> int:
        return int(_least(self.device.link.most_width, self.port.link.most_width if self.port else 0))

    @property
    def peers_are(self) -> Hashable:
        """Segments with the same value do the same work with the same hardware."""
        device = self.device
        return device.is_gpu, device.is_rdma_nic, device.hardware


class Slow(NamedTuple):
    """A link that is not what it should be: `what` (speed, width) is `value`, and `should` be more for a `reason`."""

    segment: Segment
    what: str
    value: float
    should: float
    reason: str
    severity: Severity


def segments(tree: PciTree, endpoints: Iterable[PciDevice]) -> tuple[Segment, ...]:
    """The links on the endpoints' ways to the root, each once. On the way up every second step is a link: the others
    are inside a switch."""
    serves: dict[str, list[str]] = {}
    for endpoint in endpoints:
        for device in tree.path(endpoint.address)[::2]:
            serves.setdefault(device.address, []).append(endpoint.address)
    return tuple(_segment(tree, address, tuple(whom)) for address, whom in sorted(serves.items()))


def _segment(tree: PciTree, address: str, serves: tuple[str, ...]) -> Segment:
    device = tree.devices[address]
    return Segment(device, tree.devices.get(device.parent or ""), serves)


def unjudged(judged: Iterable[Segment]) -> tuple[str, ...]:
    """Links of which nothing is known to compare, or nothing to compare with."""
    all_of_them = tuple(judged)
    return tuple(
        segment.device.address
        for segment in all_of_them
        if not (segment.speed and segment.width)
        or not ((segment.most_speed and segment.most_width) or _majority(segment, all_of_them, _both))
    )


def slow_links(
    judged: Iterable[Segment], expected: Mapping[str, tuple[float, int]], virtual: bool | None = False
) -> Iterator[Slow]:
    """`expected`: speed and width by the address of the link's lower end, from the profile. `virtual`: in a guest the
    upper ends are made up by the hypervisor, and only the peers and the devices themselves count."""
    known = tuple(segment for segment in judged if segment.speed and segment.width)
    if virtual:
        known = tuple(segment._replace(port=None) for segment in known)
    for segment in known:
        address = segment.device.address
        if address in expected:
            yield from _against_profile(segment, *expected[address])
            continue
        yield from _judge(segment, "width", segment.width, segment.most_width, _majority(segment, known, _width))
        if segment.device.is_gpu:
            yield from _gpu_speed(segment, _majority(segment, known, _speed))
        else:
            yield from _judge(segment, "speed", segment.speed, segment.most_speed, _majority(segment, known, _speed))


def _against_profile(segment: Segment, speed: float, width: int) -> Iterator[Slow]:
    reason = "is what the profile asks for"
    if segment.width < width:
        yield Slow(segment, "width", segment.width, width, reason, Severity.CRITICAL)
    if segment.speed < speed:
        yield Slow(segment, "speed", segment.speed, speed, reason, Severity.CRITICAL)


def _judge(segment: Segment, what: str, value: float, most: float, peers: float) -> Iterator[Slow]:
    model_known = segment.device.device is not None
    if most and value < most:
        if peers and value >= peers:
            reason = "is what both ends can do; its peers run alike"
            yield Slow(segment, what, value, most, reason, Severity.WARNING)
        else:
            yield Slow(segment, what, value, most, "is what both ends can do", Severity.CRITICAL)
    elif peers and value < peers and not most:
        severity = Severity.CRITICAL if segment.device.is_rdma_nic or model_known else Severity.WARNING
        yield Slow(segment, what, value, peers, "is what most of its peers have", severity)


def _gpu_speed(segment: Segment, peers: float) -> Iterator[Slow]:
    speed, most = segment.speed, segment.most_speed
    express = segment.port.config.express if segment.port and segment.port.config else None
    if most and express and 0 < express.target_speed < most:
        reason = f"is what both ends can do, and the port is set to {express.target_speed:g}"
        yield Slow(segment, "speed", min(speed, express.target_speed), most, reason, Severity.WARNING)
    elif peers and speed < peers and (not most or speed < most):
        yield Slow(segment, "speed", speed, peers, "is what most of its peers have now", Severity.WARNING)


def _majority(segment: Segment, others: tuple[Segment, ...], value: Callable[[Segment], float]) -> float:
    """What more than half of at least three peers (itself among them) have; 0 where there is no such value."""
    peers = [other for other in others if other.peers_are == segment.peers_are]
    return majority((value(other) for other in peers), _FEWEST_PEERS) or 0


def _speed(segment: Segment) -> float:
    return segment.speed


def _width(segment: Segment) -> float:
    return segment.width


def _both(segment: Segment) -> float:
    return segment.speed * segment.width


def _least(one: float, other: float) -> float:
    return min(value for value in (one, other) if value) if one or other else 0
