"""RDMA_NETDEV_DOWN, RDMA_MTU_LOW and RDMA_GID_WRONG: is the network device behind each active port fit for RDMA?

Over Ethernet (RoCE) the port's addresses and its packet size come from the network device. Over InfiniBand they do
not: there the device only carries IP, and a wrong state of it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, finding
from laggard.probes.rdma.model.fabric import Fabric, fabric
from laggard.probes.rdma.model.gid_table import Gid, read_gids
from laggard.probes.rdma.model.netdev import Netdev, ib_mtu, netdev_name, read_netdev
from laggard.probes.rdma.model.port import Port
from laggard.probes.rdma.model.sysfs import RdmaThresholds, finish, gpu_paths, read_ports
from laggard.probes.rdma.rules.gid_faults import judge_gids, pinned_index

_UP = ("up", "unknown")  # operstate of drivers that do not tell is "unknown" (sysfs-class-net)


class RdmaNetThresholds(RdmaThresholds, frozen=True):
    least_mtu_bytes: int = 4096
    """RoCE path MTU; 4096 is the most that InfiniBand's verbs know, and what every RoCE NIC for training can do."""


class Seen(NamedTuple):
    port: Port
    netdev: Netdev | None
    gids: tuple[Gid, ...] | None  # None: not read, or not RoCE


def check(host: Host, thresholds: RdmaNetThresholds) -> Iterator[Finding | Fact]:
    ports, _, unread = read_ports(host, thresholds.ignore, thresholds.soft)
    node = fabric(ports, gpu_paths(host))
    complaints = list(unread)
    seen = [_look(host, port, complaints) for port in node.ports]
    yield Fact("netdevs", {one.port.name: one.netdev.name for one in seen if one.netdev})
    for kind in node.kinds():
        peers = [one for one in seen if one.port.kind == kind]
        yield from _judge_netdevs(peers, node)
        roce = [one for one in peers if one.port.active and one.port.ethernet]
        yield from _judge_mtus(roce, node, thresholds.least_mtu_bytes)
        yield from judge_gids([(one.port, one.netdev, one.gids) for one in roce], node, pinned_index(host))
    finish(complaints)


def _look(host: Host, port: Port, complaints: list[str]) -> Seen:
    netdev, gids = None, None
    try:
        name = netdev_name(host, port)
        netdev = read_netdev(host, name) if name else None
        if not name and port.ethernet and port.active:
            complaints.append(f"the network device of {port.name} is not told, or is in another network namespace")
    except Unknown as error:
        complaints.append(str(error))
    if port.ethernet and port.active:
        try:
            gids = read_gids(host, port)
        except Unknown as error:
            complaints.append(str(error))
    return Seen(port, netdev, gids)


def _judge_netdevs(peers: list[Seen], node: Fabric) -> Iterator[Finding]:
    """Of InfiniBand ports and of those that are down, only what differs from most peers: unused ones are set down."""
    up = {one.port.name: one.netdev.operstate in _UP for one in peers if one.netdev}
    most_are_up = majority(up.values(), fewest=2) is True
    for port, netdev, _ in peers:
        if netdev is None or netdev.operstate in _UP:
            continue
        if not (most_are_up and (port.active or not netdev.admin_up)) and not (port.ethernet and port.active):
            continue
        bad = port.ethernet and port.kind == node.compute
        state = netdev.operstate if netdev.admin_up else "set down"
        yield finding(
            "RDMA_NETDEV_DOWN",
            port.name,
            f"has its network device {netdev.name} {state}",
            severity=Severity.CRITICAL if bad else Severity.WARNING,
            evidence={
                "netdev": netdev.name,
                "operstate": netdev.operstate,
                "set_up": netdev.admin_up,
                "port_state": port.state_text,
                "peers_up": sum(up.values()),
                "peers": len(up),
            },
            fix="Set the device up, and for good in the network configuration (netplan, NetworkManager, ifcfg).",
            commands=(f"ip link set {netdev.name} up", f"ip -d link show {netdev.name}"),
        )


def _judge_mtus(roce: list[Seen], node: Fabric, least: int) -> Iterator[Finding]:
    """A port below its peers, and all ports that jobs use where they are below what the hardware can."""
    mtus = {one.port.name: one.netdev.mtu for one in roce if one.netdev}
    sizes = {name: ib_mtu(mtu) for name, mtu in mtus.items()}
    if not sizes:
        return
    usual = majority(sizes.values(), fewest=2)
    expected = max(sizes.values()) if usual is None else usual
    low = [one for one in roce if one.netdev and sizes[one.port.name] < expected]
    if not low and expected < least and roce[0].port.kind == node.compute:
        low, expected = [one for one in roce if one.netdev][:1], least
    for port, netdev, _ in low:
        assert netdev is not None
        alike = [name for name, size in sizes.items() if size == sizes[port.name]]
        yield finding(
            "RDMA_MTU_LOW",
            port.name,
            f"sends packets of {sizes[port.name]} bytes, not {expected}"
            + (f", as {len(alike) - 1} more" if len(alike) > 1 else ""),
            evidence={
                "netdev": netdev.name,
                "netdev_mtu_bytes": netdev.mtu,
                "rdma_mtu_bytes": sizes[port.name],
                "expected_rdma_mtu_bytes": expected,
                "ports_alike": alike,
            },
            fix=f"Raise the MTU of {netdev.name} to that of its peers (9000, or 4200 where switches want it).",
            commands=(f"ip link set {netdev.name} mtu 9000", f"ibv_devinfo -d {port.device} | grep mtu"),
        )


PROBE: Final = Probe("rdma_net", check, RdmaNetThresholds())
