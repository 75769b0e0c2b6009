"""TCP_FALLBACK of a job that runs now, from what its ranks' connections carried and what the RDMA devices did. Pure.

A job falls back where, while its collectives ran, its ranks exchanged more with the job's other nodes over TCP than all
RDMA devices of the machine carried. What its ranks read over TCP from elsewhere (storage, object stores, logging) is
not counted, and where it cannot be told from the job's own nodes nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.agent.sock_diag.inet_diag import TcpSocket
from laggard.model import Finding
from laggard.probes.probe import finding
from laggard.wire.traffic import JobTraffic

WINDOWS: Final = 2
"""The number of windows in succession in which it must have been so: a checkpoint that is gathered by gloo is over by
then."""

_MIN_BYTES_PER_SECOND: Final = float(1 << 20)
"""The least rate that counts as traffic of collectives: less than 1 MiB/s is what stores, heartbeats and barriers
exchange."""

_FIX: Final = (
    "See which network NCCL chose, in its log (NCCL_DEBUG=INFO, `laggard diagnose` reads it): a missing plugin or "
    "/dev/infiniband in the container, NCCL_IB_DISABLE, NCCL_IB_HCA, a limit on locked memory, a wrong GID."
)


class Look(NamedTuple):
    """The traffic at one moment. `sockets`: those of the job's ranks; `rdma_bytes`: None without RDMA devices that are
    up; `collective_bytes`: that its ranks on this node have passed to collectives."""

    at: float  # monotonic
    sockets: Mapping[int, TcpSocket]
    rdma_bytes: int | None
    collective_bytes: int


def window_between(before: Look, now: Look, peers: frozenset[str]) -> JobTraffic:
    """Returns what was carried between two looks. A connection that is new has carried all of it since."""
    carried: dict[str, int] = {}
    for inode, each in now.sockets.items():
        if each.remote == each.local:
            continue
        old = before.sockets.get(inode)
        same = old is not None and (old.remote, old.remote_port) == (each.remote, each.remote_port)
        sent = each.sent_bytes - (old.sent_bytes if same and old else 0)
        received = each.received_bytes - (old.received_bytes if same and old else 0)
        carried[each.remote] = carried.get(each.remote, 0) + max(0, sent) + max(0, received)
    rdma = None if now.rdma_bytes is None or before.rdma_bytes is None else max(0, now.rdma_bytes - before.rdma_bytes)
    return JobTraffic(
        seconds=now.at - before.at,
        tcp_peer_bytes=sum(size for remote, size in carried.items() if remote in peers),
        tcp_other_bytes=sum(size for remote, size in carried.items() if remote not in peers),
        rdma_bytes=rdma,
        collective_bytes=max(0, now.collective_bytes - before.collective_bytes),
        peers=tuple(sorted(remote for remote in carried if remote in peers)),
    )


def falls_back(window: JobTraffic) -> bool:
    """Whether collectives ran, and went over TCP though RDMA devices are up."""
    if window.rdma_bytes is None or not window.collective_bytes or window.seconds <= 0:
        return False
    rate = window.tcp_peer_bytes / window.seconds
    return rate >= _MIN_BYTES_PER_SECOND and window.tcp_peer_bytes > window.rdma_bytes


def not_known(window: JobTraffic) -> str:
    """The reason why nothing can be concluded; empty where it can, or where nothing is to be."""
    if window.rdma_bytes is None or not window.collective_bytes or window.seconds <= 0 or falls_back(window):
        return ""
    rate = window.tcp_other_bytes / window.seconds
    if rate >= _MIN_BYTES_PER_SECOND and window.tcp_other_bytes > window.rdma_bytes:
        return "the ranks exchange more over TCP than RDMA carries, with addresses that may be the job's nodes or not"
    return ""


def tcp_fallback(job_id: str, window: JobTraffic) -> Finding:
    rate = window.tcp_peer_bytes / window.seconds / 1e6
    rdma = (window.rdma_bytes or 0) / window.seconds / 1e6
    return finding(
        "TCP_FALLBACK",
        f"job {job_id}",
        f"TCP instead of RDMA: its ranks here exchange {rate:.3g} MB/s with the job's other nodes over TCP, and all "
        f"RDMA devices carry {rdma:.3g} MB/s",
        evidence={
            "seconds": round(window.seconds, 1),
            "tcp_bytes_with_the_jobs_nodes": window.tcp_peer_bytes,
            "tcp_bytes_with_others": window.tcp_other_bytes,
            "rdma_bytes": window.rdma_bytes,
            "collective_bytes": window.collective_bytes,
            "nodes": list(window.peers[:16]),
        },
        fix=_FIX,
        commands=("ibv_devinfo", "ls /dev/infiniband", "ulimit -l"),
    )
