"""Looks every half minute at what the network carries for the jobs that run here, and keeps what follows from it.

Nothing is asked for jobs of one node, nor on machines without RDMA devices that are up.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import structs

from laggard.agent.sock_diag import TcpSocket
from laggard.agent.traffic.sockets import (
    RESOLVE_SECONDS,
    VARIABLES,
    SocketsUnknown,
    addresses_of,
    clients_of_store,
    named_hosts,
    read_variables,
    socket_inodes,
    tcp_sockets,
)
from laggard.model import Finding
from laggard.probes.probe import finding
from laggard.wire.ranks import JobTraffic, RankRow

# TCP_FALLBACK of a job that runs now, from what its ranks' connections carried and what the RDMA devices did. Pure.
#
# A job falls back where, while its collectives ran, its ranks exchanged more with the job's other nodes over TCP than
# all RDMA devices of the machine carried. What its ranks read over TCP from elsewhere (storage, object stores, logging)
# is not counted, and where it cannot be told from the job's own nodes nothing is concluded.

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


_COUNTERS: Final = (
    # In words of four bytes (InfiniBand Architecture Specification 16.1.3.5).
    ("counters/port_xmit_data", 4),
    ("counters/port_rcv_data", 4),
    ("hw_counters/tx_bytes", 1),  # EFA
    ("hw_counters/rx_bytes", 1),
    # RDMA in software counts packets alone: by the smallest that carries a large message, of 1024 bytes.
    ("hw_counters/sent_pkts", 1024),
    ("hw_counters/rcvd_pkts", 1024),
)
_MAX_PORTS: Final = 256


def rdma_bytes(sys: str = "/sys") -> int | None:
    """Returns the sum over all ports that are up, sent and received; None where there is no such port, or no counter
    that can be read."""
    total, read = 0, False
    for port in sorted(glob.glob(f"{glob.escape(sys)}/class/infiniband/*/ports/*"))[:_MAX_PORTS]:
        if "ACTIVE" not in _read(f"{port}/state"):
            continue
        for name, unit in _COUNTERS:
            text = _read(os.path.join(port, name)).strip()
            if text.isdecimal():
                total += int(text) * unit
                read = True
    return total if read else None


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read(64)
    return ""


log = logging.getLogger("laggard.agent")

INTERVAL_SECONDS: Final = 30.0
_MAX_JOBS: Final = 64
_ASK_AGAIN_SECONDS: Final = 600.0
"""The time after which names that nobody knew are asked for again: a name service that is away takes seconds to say
so."""

Job = tuple[int, str]
"""A job by its owner and name."""


class JobSeen(NamedTuple):
    """`windows`: how many in succession fell back; `traffic`: of the last one; `named`: the addresses of the nodes that
    its environment names, as they were known at `named_at` (monotonic)."""

    look: Look
    windows: int
    named: frozenset[str]
    named_at: float
    traffic: JobTraffic | None


class TrafficWatch:
    """`rows` returns the ranks of this node. Readers take `traffic` and `findings` as a whole."""

    def __init__(self, rows: Callable[[], Iterable[RankRow]], sys: str = "/sys") -> None:
        self._rows, self._sys = rows, sys
        self._seen: dict[Job, JobSeen] = {}
        self._resolving: defaultdict[int, float] = defaultdict(float)  # seconds, by owner, in this look
        self._stopped = threading.Event()
        self.traffic: tuple[JobTraffic, ...] = ()
        self.findings: tuple[Finding, ...] = ()

    def start(self) -> None:
        threading.Thread(target=self._run, name="traffic", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def look(self) -> None:
        """Looks once, and judges what was carried since the last time."""
        self._resolving.clear()
        jobs = _jobs_of_many_nodes(self._rows())
        rdma = rdma_bytes(self._sys) if jobs else None
        if rdma is None:
            self._seen, self.traffic, self.findings = {}, (), ()
            return
        seen: dict[Job, JobSeen] = {}
        traffic: list[JobTraffic] = []
        for job, rows in jobs.items():
            try:
                seen[job] = self._look_at(job, rows, tcp_sockets(), rdma)
            except SocketsUnknown as error:
                traffic.append(JobTraffic(0.0, 0, 0, rdma, 0, (), job[1], job[0], str(error)))
        traffic += [each.traffic for each in seen.values() if each.traffic]
        lasting = {job: each.traffic for job, each in seen.items() if each.traffic and each.windows >= WINDOWS}
        self._seen, self.traffic = seen, tuple(traffic)
        self.findings = tuple(tcp_fallback(name, window) for (_, name), window in lasting.items())

    def _look_at(self, job: Job, rows: list[RankRow], everything: dict[int, TcpSocket], rdma: int) -> JobSeen:
        inodes = frozenset().union(*(socket_inodes(row.pid) for row in rows if row.pid))
        sockets = {inode: everything[inode] for inode in inodes & everything.keys()}
        carried = sum(total.bytes for row in rows for total in row.collectives)
        look = Look(time.monotonic(), sockets, rdma, carried)
        before = self._seen.get(job)
        variables = read_variables([row.pid for row in rows if row.pid], VARIABLES)
        if before is None or (not before.named and look.at - before.named_at > _ASK_AGAIN_SECONDS):
            named, named_at = self._resolve(job[0], named_hosts(variables)), look.at
        else:
            named, named_at = before.named, before.named_at
        if before is None:
            return JobSeen(look, 0, named, named_at, None)
        window = window_between(before.look, look, named | clients_of_store(everything.values(), variables))
        owner, name = job
        traffic = structs.replace(window, job_id=name, owner=owner, unknown=not_known(window))
        return JobSeen(look, before.windows + 1 if falls_back(window) else 0, named, named_at, traffic)

    def _resolve(self, owner: int, names: Iterable[str]) -> frozenset[str]:
        """Resolves names within RESOLVE_SECONDS for all jobs of the owner: one user's names must not keep others' jobs
        from being looked at."""
        began = time.monotonic()
        found = addresses_of(names, seconds=RESOLVE_SECONDS - self._resolving[owner])
        self._resolving[owner] += time.monotonic() - began
        return found

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_SECONDS):
            try:
                self.look()
            except Exception:  # the loop goes on: the rest of the agent does not need it
                log.exception("a defect in laggard, in the watch on the network's traffic")


def _jobs_of_many_nodes(rows: Iterable[RankRow]) -> dict[Job, list[RankRow]]:
    """Returns the running ranks of the jobs that have ranks on other nodes, and use GPUs: between CPUs gloo has TCP
    alone."""
    jobs: dict[Job, list[RankRow]] = {}
    for row in rows:
        if row.state == "running" and row.gpu is not None:
            jobs.setdefault((row.owner, row.job_id), []).append(row)
    many = {job: own for job, own in jobs.items() if max(row.world_size for row in own) > len(own)}
    return dict(list(many.items())[:_MAX_JOBS])
