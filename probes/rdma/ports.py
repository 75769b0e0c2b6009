"""RDMA_PORT_DOWN and RDMA_RATE_LOW: can each port that jobs use carry data, and as fast as its peers?

A port that was never cabled is no fault: storage and management cards have spare ones. What is expected of a port is
what the profile names, else what its peers do, else as many active ports as there are GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, finding
from laggard.probes.rdma.model.fabric import Fabric, fabric
from laggard.probes.rdma.model.netdev import was_up
from laggard.probes.rdma.model.port import LINK_UP, Kind, Port
from laggard.probes.rdma.model.sysfs import RdmaThresholds, finish, gpu_paths, is_any, read_ports


class RdmaPortThresholds(RdmaThresholds, frozen=True):
    expected: tuple[str, ...] = ()
    """Devices that must be active, as patterns: `mlx5_[0-7]`. The others are then not judged."""

    least_gigabits: float = 0.0
    """Rate below which a port that jobs use is too slow; 0: its peers tell."""


def check(host: Host, thresholds: RdmaPortThresholds) -> Iterator[Finding | Fact]:
    ports, soft, unread = read_ports(host, thresholds.ignore, thresholds.soft)
    if thresholds.expected:
        ports = tuple(port for port in ports if is_any(port.device, thresholds.expected))
    node = fabric(ports, gpu_paths(host))
    yield Fact("ports", {port.name: f"{port.state_text}, {port.rate_text}" for port in ports})
    if soft:
        yield Fact("soft", soft)
    for port in node.ports:
        if not port.active:
            severity = expected_down(port, node, was_up(host, port), bool(thresholds.expected))
            if severity is not None:
                yield _down(port, node, severity)
    for kind in node.kinds():
        yield from _judge_rates(node, kind, thresholds.least_gigabits)
    finish(unread)


def expected_down(port: Port, node: Fabric, was_up: bool, named: bool) -> Severity | None:
    """How bad it is that `port` is not active; None where it seems to be meant."""
    trained = port.phys_state == LINK_UP  # INIT and ARMED: a cable, and no subnet manager that says go
    if named:
        return Severity.CRITICAL
    if port.kind != node.compute:
        return Severity.WARNING if trained or was_up else None
    peers = node.of(port.kind)
    active = sum(peer.active for peer in peers)
    if trained:
        return Severity.CRITICAL
    if active == 0:
        many = node.gpus and len(peers) >= max(2, node.gpus // 2)
        if was_up or not port.ethernet or many:
            return Severity.CRITICAL
        return Severity.WARNING if node.gpus else None
    if node.gpus and active >= node.gpus:  # each GPU has its port: this one is spare
        return Severity.WARNING if was_up else None
    return Severity.CRITICAL if 2 * active > len(peers) else Severity.WARNING


def _down(port: Port, node: Fabric, severity: Severity) -> Finding:
    peers = node.of(port.kind)
    return finding(
        "RDMA_PORT_DOWN",
        port.name,
        f"is {port.state_text}, its link {port.phys_text}",
        severity=severity,
        evidence={
            "state": port.state_text,
            "phys_state": port.phys_text,
            "link_layer": port.kind.link_layer,
            "pci": port.address,
            "peers_active": sum(peer.active for peer in peers),
            "peers": len(peers),
        },
        fix=_cure(port),
        commands=(f"ibstat {port.device}", f"mlxlink -d {port.device} --show_module", f"cat {port.folder}/phys_state"),
    )


def _cure(port: Port) -> str:
    if port.phys_state == LINK_UP and not port.ethernet:
        return "The cable is good and no subnet manager has brought the port up: look at it (sminfo) and at the switch."
    if port.ethernet:
        return "Set the network device up; where it is, look at the cable, the transceiver and the switch's port."
    return "Look at the cable, the transceiver and the switch's port; swap the cable with a good port's to tell."


def _judge_rates(node: Fabric, kind: Kind, least: float) -> Iterator[Finding]:
    active = [port for port in node.of(kind) if port.active]
    compute = kind == node.compute
    expected = _expected_rate(active, least if compute else 0.0)
    good = sum(port.rate_gigabits >= expected for port in active)
    for port in active:
        one_lane = port.lanes == 1 and not port.ethernet and kind.link_layer == "InfiniBand"
        if port.rate_gigabits >= expected and not one_lane:
            continue
        enough = good >= node.gpus if node.gpus else 2 * good <= len(active)
        bad = compute and (least > 0 or one_lane or not enough)
        yield finding(
            "RDMA_RATE_LOW",
            port.name,
            f"runs at {port.rate_text}"
            + (f", its peers at {expected:g} Gb/s" if expected > port.rate_gigabits else ""),
            severity=Severity.CRITICAL if bad else Severity.WARNING,
            evidence={
                "rate_gigabits": port.rate_gigabits,
                "expected_gigabits": expected,
                "lanes": port.lanes,
                "peers": len(active),
                "pci": port.address,
            },
            fix="The link has trained down: reseat or swap the cable, then the transceiver, then the switch's port.",
            commands=(f"ibstat {port.device}", f"mlxlink -d {port.device} --show_fec --show_counters"),
        )


def _expected_rate(active: list[Port], least: float) -> float:
    """The profile's, else the one that most of the peers have, else the highest (no majority, as of two)."""
    if least or not active:
        return least
    rates = [port.rate_gigabits for port in active]
    usual = majority(rates)
    return max(rates) if usual is None else usual


PROBE: Final = Probe("rdma_ports", check, RdmaPortThresholds())
