"""RDMA_PORT_DOWN and RDMA_RATE_LOW: ports that jobs use and that carry no data, or less than their peers.

A port that was never cabled is no fault: storage and management cards have spare ones. Which ports should be active is
decided by the profile, else by which are beside the GPUs, else by their peers and the number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import Unreadable, or_none
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import has_just_booted, read_uptime
from laggard.probes.probe import RDMA, Fact, NotNegative, Probe, facts, matches_any, say
from laggard.probes.rdma.model.node import NodePorts, node_ports
from laggard.probes.rdma.model.sysfs import DISABLED, LINK_UP, Port, RdmaThresholds, gpu_paths, has_been_up, read_ports

_WAITS: Final = "waiting since"

ACTIVATING_SECONDS: Final = 600.0
"""The time after boot for which a port may not be active yet: its driver loads, its link trains, and the subnet manager
comes to it, which after an outage of a row comes to hundreds of others first."""

WAITING_SECONDS: Final = 300.0
"""The time for which all InfiniBand ports of a node may wait for the subnet manager: one that restarts, or takes over
from another, activates the ports of the whole fabric anew, and their links stay up meanwhile."""


class RdmaPortThresholds(RdmaThresholds, frozen=True):
    expected: tuple[str, ...] = ()
    """Patterns of the devices that must be active: `mlx5_[0-7]`. The others are then not judged."""

    least_gigabits: NotNegative = 0.0
    """Rate below which a port that jobs use is too slow; 0: it is compared with its peers."""


def check(host: Host, thresholds: RdmaPortThresholds) -> Iterator[Finding | Fact | SaveCounters | Unreadable]:
    ports, software_devices, unreadable = read_ports(host, thresholds.ignore, thresholds.soft)
    if thresholds.expected:
        ports = tuple(port for port in ports if matches_any(port.device, thresholds.expected))
    node = node_ports(ports, gpu_paths(host))
    yield Fact("ports", {port.name: f"{port.state_text}, {port.rate_text}" for port in ports})
    yield from facts(soft=software_devices)
    since = _waiting_since(host, ports)
    if since is not None:
        yield SaveCounters({_WAITS: since})
    grace = max(ACTIVATING_SECONDS, since + WAITING_SECONDS if since else 0.0)
    just_booted = has_just_booted(host, grace)
    for port in node.ports:
        if not port.active:
            been_up = has_been_up(host, port)
            severity = severity_if_down(port, node, been_up, bool(thresholds.expected), just_booted)
            if severity is not None:
                yield _down(port, node, severity)
    for kind in node.kinds():
        for serving in (True, False):
            alike = [port for port in node.of_kind(kind) if port.active and node.may_serve(port) is serving]
            yield from _judge_rates(node, alike, serving, thresholds.least_gigabits)
    yield from unreadable


def _waiting_since(host: Host, ports: Iterable[Port]) -> int | None:
    """Returns the uptime at which all InfiniBand ports with a link were first seen to wait for the subnet manager, as
    far as earlier looks tell; 0: they do not wait; None: there is no such port, or the uptime is not known."""
    trained = [port for port in ports if not port.ethernet and port.phys_state == LINK_UP]
    if not trained:
        return None
    if any(port.active for port in trained):
        return 0
    uptime = or_none(read_uptime, host)
    if uptime is None:
        return None
    snapshots = host.counter_history.snapshots
    return (snapshots[-1].counters.get(_WAITS) if snapshots else None) or max(int(uptime), 1)


def severity_if_down(
    port: Port, node: NodePorts, been_up: bool, named: bool, just_booted: bool = False
) -> Severity | None:
    """Returns how severe it is that `port` is not active; None where nothing shows that it should be. `been_up`: it has
    had a link since its driver started; `named`: the profile names it; `just_booted`: the subnet manager may not have
    come to it yet."""
    severity = Severity.CRITICAL if named else _by_peers(port, node, been_up)
    return Severity.WARNING if severity and just_booted else severity


def _by_peers(port: Port, node: NodePorts, been_up: bool) -> Severity | None:
    trained = port.phys_state == LINK_UP  # INIT and ARMED: it has a cable, and no subnet manager activated it
    if not node.may_serve(port):
        return Severity.WARNING if trained or been_up else None
    needed = node.needed is not None and port.name in node.needed
    peers = [peer for peer in node.of_kind(port.kind) if node.may_serve(peer)]
    active = sum(peer.active for peer in peers)
    if trained:
        return Severity.CRITICAL
    # On InfiniBand somebody switched it off: a cable that is out does not do that. For RoCE mlx5 says so of any port
    # without a carrier (drivers/infiniband/hw/mlx5/main.c, mlx5_query_port_roce).
    if port.phys_state == DISABLED and not port.ethernet and not (needed and been_up):
        return Severity.WARNING
    if active == 0:
        many = node.gpus and len(peers) >= max(2, node.gpus // 2)
        if been_up or not port.ethernet or many:
            return Severity.CRITICAL
        return Severity.WARNING if node.gpus else None
    if not needed and node.gpus and active >= node.gpus:  # each GPU has its port: this one is spare
        return Severity.WARNING if been_up else None
    # Where places tell nothing, as in a virtual machine, the past does: a port that had no link may be a spare one.
    wanted = needed or been_up or not node.gpus
    return Severity.CRITICAL if wanted and 2 * active > len(peers) else Severity.WARNING


def _down(port: Port, node: NodePorts, severity: Severity) -> Finding:
    peers = node.of_kind(port.kind)
    evidence = {"pci": port.address, "peers_active": sum(peer.active for peer in peers), "peers": len(peers)}
    linked = port.phys_state == LINK_UP and not port.ethernet
    kind = "port_down_linked" if linked else "port_down_ethernet" if port.ethernet else "port_down"
    told = {"state": port.state_text, "link": port.phys_text, "device": port.device, "folder": port.folder}
    return say("rdma", kind, port.name, evidence, severity, **told)


def _judge_rates(node: NodePorts, active: list[Port], compute: bool, least: float) -> Iterator[Finding]:
    """`active`: the ports of one kind that are; `compute`: whether GPUs use them, or may."""
    expected = _expected_rate(active, least if compute else 0.0)
    good = sum(port.rate_gigabits >= expected for port in active)
    for port in active:
        one_lane = port.lanes == 1 and not port.ethernet and port.kind.link_layer == "InfiniBand"
        if port.rate_gigabits >= expected and not one_lane:
            continue
        enough = node.needed is None and good >= node.gpus if node.gpus else 2 * good <= len(active)
        critical = compute and (least > 0 or one_lane or not enough)
        evidence = {"expected_gigabits": expected, "peers": len(active), "pci": port.address}
        peers = f", its peers at {expected:g} Gb/s" if expected > port.rate_gigabits else ""
        severity = Severity.CRITICAL if critical else Severity.WARNING
        told = {"rate": port.rate_text, "peers": peers, "device": port.device}
        yield say("rdma", "rate_low", port.name, evidence, severity, **told)


def _expected_rate(active: list[Port], least: float) -> float:
    """Returns the profile's rate, else that of most peers, else (no majority, as of two ports) the highest."""
    if least or not active:
        return least
    rates = [port.rate_gigabits for port in active]
    usual = majority(rates)
    return max(rates) if usual is None else usual


PROBE: Final = Probe("rdma_ports", check, RdmaPortThresholds(), group=RDMA)
