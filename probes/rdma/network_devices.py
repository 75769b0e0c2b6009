"""RDMA_NETDEV_DOWN, RDMA_MTU_LOW and RDMA_GID_WRONG: faults of the network device behind an active RDMA port.

Over Ethernet (RoCE) the port's addresses and its packet size come from the network device. Over InfiniBand they do not:
there the device only carries IP, and a wrong state of it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import Unreadable
from laggard.probes.host.host import Host
from laggard.probes.probe import RDMA, Count, Fact, Probe, say
from laggard.probes.rdma.model.gid_table import V2, Gid, PortNetwork, preferred_gid, read_port_network
from laggard.probes.rdma.model.nccl_settings import read_gid_index
from laggard.probes.rdma.model.node import NodePorts, node_ports
from laggard.probes.rdma.model.sysfs import Netdev, Port, RdmaThresholds, gpu_paths, read_ports, roce_path_mtu

_UP = ("up", "unknown")  # drivers that do not report an operstate have "unknown" (sysfs-class-net)


class RdmaNetThresholds(RdmaThresholds, frozen=True):
    least_mtu_bytes: Count = 4096
    """RoCE path MTU. 4096 is the largest that InfiniBand's verbs have, and every RoCE NIC for training can do it."""


def check(host: Host, thresholds: RdmaNetThresholds) -> Iterator[Finding | Fact | Unreadable]:
    readings = read_ports(host, thresholds.ignore, thresholds.soft)
    node = node_ports(readings.ports, gpu_paths(host))
    networks = [read_port_network(host, port) for port in node.ports]
    yield Fact("netdevs", {network.port.name: network.netdev.name for network in networks if network.netdev})
    for kind in node.kinds():
        peers = [network for network in networks if network.port.kind == kind]
        yield from _judge_netdevs(peers, node)
        roce = [network for network in peers if network.port.active and network.port.ethernet]
        yield from _judge_mtus(roce, node, thresholds.least_mtu_bytes)
        yield from judge_gids(roce, node, read_gid_index(host))
    yield from readings.unreadable
    for network in networks:
        yield from network.unreadable


def _judge_netdevs(peers: list[PortNetwork], node: NodePorts) -> Iterator[Finding]:
    """Finds devices that are down. For InfiniBand ports, and for ports that are not active, only where most peers are
    up: unused devices are set down."""
    up = {network.port.name: network.netdev.operstate in _UP for network in peers if network.netdev}
    most_are_up = majority(up.values(), fewest=2) is True
    for port, netdev, *_ in peers:
        if netdev is None or netdev.operstate in _UP:
            continue
        if not (most_are_up and (port.active or not netdev.admin_up)) and not (port.ethernet and port.active):
            continue
        critical = port.ethernet and node.may_serve(port)
        state = netdev.operstate if netdev.admin_up else "set down"
        evidence = {"port_state": port.state_text, "peers_up": sum(up.values()), "peers": len(up)}
        severity = Severity.CRITICAL if critical else Severity.WARNING
        yield say("rdma", "netdev_down", port.name, evidence, severity, netdev=netdev.name, state=state)


def _judge_mtus(roce: list[PortNetwork], node: NodePorts, least: int) -> Iterator[Finding]:
    """Finds ports below their peers, and all ports that jobs use where they are alike and below `least`."""
    sizes = {network.port.name: roce_path_mtu(network.netdev.mtu) for network in roce if network.netdev}
    if not sizes:
        return
    usual = majority(sizes.values(), fewest=2)
    expected = max(sizes.values()) if usual is None else usual
    low = [network for network in roce if network.netdev and sizes[network.port.name] < expected]
    if not low and expected < least and roce[0].port.kind == node.compute_kind:
        low, expected = [network for network in roce if network.netdev], least
    for port, netdev, *_ in low:
        assert netdev is not None
        evidence = {"netdev": netdev.name, "netdev_mtu_bytes": netdev.mtu}
        told = {"size": sizes[port.name], "expected": expected, "netdev": netdev.name, "device": port.device}
        yield say("rdma", "mtu_low", port.name, evidence, **told)


# RDMA_GID_WRONG: a RoCE port without a routable address, or without one at the job's GID index. Pure.


def judge_gids(roce: Sequence[PortNetwork], node: NodePorts, pinned: int | None) -> Iterator[Finding]:
    """Judges active RoCE ports of one kind. `pinned`: NCCL_IB_GID_INDEX, None where NCCL chooses the index itself."""
    tables = {network.port.name: network.gids for network in roce if network.gids is not None}
    chosen = {name: preferred_gid(gids) for name, gids in tables.items()}
    usual = majority((gid is not None for gid in chosen.values()), fewest=2)
    usual_index = majority((gid.number for gid in chosen.values() if gid), fewest=2)
    for port, netdev, gids, _ in roce:
        if gids is None:
            continue
        gid, compute = chosen[port.name], node.may_serve(port)
        if gid is None and (usual is True or compute):
            critical = compute and usual is True
            summary = "has no RoCE v2 address " + _reason(gids)
            yield _finding(port, netdev, gids, summary, Severity.CRITICAL if critical else Severity.WARNING)
        elif gid and pinned is not None and compute and not _usable(gids, pinned):
            summary = f"has no RoCE v2 address at index {pinned}, which NCCL_IB_GID_INDEX names"
            yield _finding(port, netdev, gids, summary, Severity.CRITICAL)
        elif gid and usual_index is not None and gid.number != usual_index:
            summary = f"has its address at index {gid.number}, its peers at {usual_index}"
            yield _finding(port, netdev, gids, summary, Severity.INFO)


def _reason(gids: tuple[Gid, ...]) -> str:
    if not gids:
        return "(its GID table is empty)"
    if not any(gid.type == V2 for gid in gids):
        return "(only RoCE v1)"
    if any(gid.scope != "link-local" for gid in gids):
        return "(its IP address is there only for RoCE v1)"
    return "(only link-local ones: the device has no IP address)"


def _usable(gids: tuple[Gid, ...], index: int) -> bool:
    return any(gid.number == index and gid.routable for gid in gids)


def _finding(port: Port, netdev: Netdev | None, gids: tuple[Gid, ...], summary: str, severity: Severity) -> Finding:
    name = netdev.name if netdev else "the device"
    evidence = {"netdev": name, "gids": [f"{gid.number}: {gid.type} {gid.scope}" for gid in gids[:8]]}
    told = {"told": summary, "netdev": name, "device": port.device, "folder": port.folder}
    return say("rdma", "gid", port.name, evidence, severity, **told)


PROBE: Final = Probe("rdma_net", check, RdmaNetThresholds(), group=RDMA)
