"""Looks every half minute at what the network carries for the jobs that run here, and keeps what follows from it.

Nothing is asked for jobs of one node, nor on machines without RDMA devices that are up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec import structs

from laggard.agent.sock_diag.inet_diag import TcpSocket
from laggard.agent.traffic.judge import WINDOWS, Look, falls_back, not_known, tcp_fallback, window_between
from laggard.agent.traffic.peers import RESOLVE_SECONDS, VARIABLES, addresses_of, clients_of_store, named_hosts
from laggard.agent.traffic.rdma_bytes import rdma_bytes
from laggard.agent.traffic.sockets import SocketsUnknown, read_variables, socket_inodes, tcp_sockets
from laggard.model import Finding
from laggard.wire.ranks import RankRow
from laggard.wire.traffic import JobTraffic

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
