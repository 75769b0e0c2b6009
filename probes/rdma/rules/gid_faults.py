"""RDMA_GID_WRONG: does each RoCE port have an address that peers can reach, where the job looks for it? Pure, but for
where the job's choice of an index stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import finding
from laggard.probes.rdma.model.fabric import Fabric
from laggard.probes.rdma.model.gid_table import V2, Gid, best
from laggard.probes.rdma.model.netdev import Netdev
from laggard.probes.rdma.model.port import Port

Seen = tuple[Port, "Netdev | None", "tuple[Gid, ...] | None"]


def judge_gids(roce: Sequence[Seen], node: Fabric, pinned: int | None) -> Iterator[Finding]:
    tables = {port.name: gids for port, _, gids in roce if gids is not None}
    chosen = {name: best(gids) for name, gids in tables.items()}
    usual = majority((gid is not None for gid in chosen.values()), fewest=2)
    compute = bool(roce) and roce[0][0].kind == node.compute
    usual_index = majority((gid.number for gid in chosen.values() if gid), fewest=2)
    for port, netdev, gids in roce:
        if gids is None:
            continue
        gid = chosen[port.name]
        if gid is None and (usual is True or compute):
            critical = compute and usual is True
            why = "has no RoCE v2 address " + _instead(gids)
            yield _wrong_gid(port, netdev, gids, why, Severity.CRITICAL if critical else Severity.WARNING)
        elif gid and pinned is not None and compute and not _usable(gids, pinned):
            why = f"has no RoCE v2 address at index {pinned}, which NCCL_IB_GID_INDEX names"
            yield _wrong_gid(port, netdev, gids, why, Severity.CRITICAL)
        elif gid and usual_index is not None and gid.number != usual_index:
            why = f"has its address at index {gid.number}, its peers at {usual_index}"
            yield _wrong_gid(port, netdev, gids, why, Severity.INFO)


def _instead(gids: tuple[Gid, ...]) -> str:
    if not gids:
        return "(its GID table is empty)"
    if not any(gid.type == V2 for gid in gids):
        return "(RoCE v1 alone)"
    if any(gid.scope != "link-local" for gid in gids):
        return "(its IP address is there for RoCE v1 alone)"
    return "(link-local ones alone: the device has no IP address)"


def _usable(gids: tuple[Gid, ...], index: int) -> bool:
    return any(gid.number == index and gid.routable for gid in gids)


def _wrong_gid(port: Port, netdev: Netdev | None, gids: tuple[Gid, ...], why: str, severity: Severity) -> Finding:
    name = netdev.name if netdev else "the device"
    return finding(
        "RDMA_GID_WRONG",
        port.name,
        why,
        severity=severity,
        evidence={
            "netdev": name,
            "gids": [f"{gid.number}: {gid.type} {gid.scope}" for gid in gids[:8]],
        },
        fix=f"Give {name} its IP address; leave NCCL_IB_GID_INDEX unset (NCCL 2.21 and newer finds the index itself).",
        commands=(f"ip address show {name}", f"show_gids {port.device}", f"head {port.folder}/gid_attrs/types/*"),
    )


def pinned_index(host: Host) -> int | None:
    """NCCL_IB_GID_INDEX of the job's environment, where laggard runs in one, or of the machine's nccl.conf."""
    for text in (_environment(host), _configuration(host)):
        try:
            index = int(text)
        except ValueError:
            continue
        return index if index >= 0 else None
    return None


def _environment(host: Host) -> str:
    try:
        return host.environ().get("NCCL_IB_GID_INDEX", "")
    except Unknown:
        return ""


def _configuration(host: Host) -> str:
    try:
        lines = host.read("/etc/nccl.conf").splitlines()
    except Unknown:
        return ""
    values = [line.partition("=")[2].strip() for line in lines if line.strip().startswith("NCCL_IB_GID_INDEX")]
    return values[-1] if values else ""
