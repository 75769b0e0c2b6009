"""The processes of a job as NCCL's log shows them, with what is known of their machines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from laggard.nccl.log.model import Connection, NcclProcess

_RDMA_NETWORK = re.compile(r"IB(?:ext|-).*|IB|gIB|.*ANP.*|.*UCX.*|.*SHARP.*|.*Libfabric", re.IGNORECASE)
_LIBFABRIC: Final = "Libfabric"
_TCP_PROVIDERS: Final = ("tcp", "sockets", "net")


class HardwareFacts(NamedTuple):
    """The known facts of the job's machines from elsewhere. None: not known, and then nothing is assumed."""

    rdma: bool | None = None
    """The machines have an RDMA device that is not a software device."""
    gpudirect: bool | None = None
    """The GPUs and their driver support GPUDirect RDMA; False: GeForce boards, GB10."""
    gpus: int | None = None
    """The number of GPUs of one machine."""


class NcclJob(NamedTuple):
    """The processes that are judged together, and what is known of their machines."""

    processes: tuple[NcclProcess, ...]
    facts: HardwareFacts

    @property
    def rdma(self) -> bool | None:
        """Whether the machines have RDMA: from the facts, else True where any process found it. None: not known."""
        if self.facts.rdma is not None:
            return self.facts.rdma
        found = any(process.rdma_devices or rdma_connections(process) for process in self.processes)
        return True if found else None

    def nodes(self, process: NcclProcess) -> int | None:
        """Returns how many machines the process's job spans, from its own log lines, else from those of a process whose
        job is as large; None: not known."""
        world = process.world
        if world and world.nodes is not None:
            return world.nodes
        reported = {
            other.world.nodes
            for other in self.processes
            if other.world and other.world.nodes is not None and (not world or other.world.ranks == world.ranks)
        }
        return max((nodes for nodes in reported if nodes is not None), default=None)

    def related(self, process: NcclProcess) -> tuple[NcclProcess, ...]:
        """Returns the processes whose lines may explain what `process` does: itself, then those of its host, then all
        others if the log lacks its own beginning."""
        same_host = [other for other in self.processes if other.host == process.host and other is not process]
        rest = [] if process.started else [other for other in self.processes if other.host != process.host]
        return (process, *same_host, *rest)


def network_connections(process: NcclProcess) -> tuple[Connection, ...]:
    return tuple(connection for connection in process.connections if connection.transport == "NET")


def tcp_connections(process: NcclProcess) -> tuple[Connection, ...]:
    return tuple(each for each in network_connections(process) if _is_tcp(process, each))


def rdma_connections(process: NcclProcess) -> tuple[Connection, ...]:
    return tuple(
        each
        for each in network_connections(process)
        if _RDMA_NETWORK.fullmatch(each.name) and not _is_tcp(process, each)
    )


def _is_tcp(process: NcclProcess, connection: Connection) -> bool:
    """Whether it is one of NCCL's own sockets, or of libfabric's where its provider is TCP."""
    over_tcp = process.provider.split(";")[0] in _TCP_PROVIDERS
    return connection.name == "Socket" or (over_tcp and connection.name.endswith(_LIBFABRIC))


def hosts_of(processes: Iterable[NcclProcess]) -> str:
    """Names the hosts: `node-a`, or `node-a and 3 others`."""
    hosts = sorted({process.host for process in processes if process.host})
    if not hosts:
        return "the job"
    if len(hosts) == 1:
        return hosts[0]
    return f"{hosts[0]} and {len(hosts) - 1} other{'s' * (len(hosts) > 2)}"


def ranks_of(processes: Iterable[NcclProcess]) -> tuple[int, ...]:
    return tuple(sorted({rank for process in processes for rank in process.ranks}))


def evidence_of(processes: Sequence[NcclProcess]) -> dict[str, object]:
    """Returns evidence that names the processes, bounded in length."""
    return {
        "ranks": list(ranks_of(processes)[:64]),
        "hosts": sorted({process.host for process in processes if process.host})[:16],
        "processes": len(processes),
    }
