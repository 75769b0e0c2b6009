"""RDMA_GID_WRONG: a RoCE port without a routable address, or without one at the job's GID index. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.probe import finding
from laggard.probes.rdma.model.gid_table import V2, Gid, PortNetwork, preferred_gid
from laggard.probes.rdma.model.sysfs import Netdev, NodePorts, Port


def judge_gids(roce: Sequence[PortNetwork], node: NodePorts, pinned: int | None) -> Iterator[Finding]:
    """Judges active RoCE ports of one kind. `pinned`: NCCL_IB_GID_INDEX, None where NCCL chooses the index itself."""
    tables = {network.port.name: network.gids for network in roce if network.gids is not None}
    chosen = {name: preferred_gid(gids) for name, gids in tables.items()}
    usual = majority((gid is not None for gid in chosen.values()), fewest=2)
    compute = bool(roce) and roce[0].port.kind == node.compute_kind
    usual_index = majority((gid.number for gid in chosen.values() if gid), fewest=2)
    for port, netdev, gids, _ in roce:
        if gids is None:
            continue
        gid = chosen[port.name]
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
    return finding(
        "RDMA_GID_WRONG",
        port.name,
        summary,
        severity=severity,
        evidence={
            "netdev": name,
            "gids": [f"{gid.number}: {gid.type} {gid.scope}" for gid in gids[:8]],
        },
        fix=f"Give {name} its IP address; leave NCCL_IB_GID_INDEX unset (NCCL 2.21 and newer finds the index itself).",
        commands=(f"ip address show {name}", f"show_gids {port.device}", f"head {port.folder}/gid_attrs/types/*"),
    )
