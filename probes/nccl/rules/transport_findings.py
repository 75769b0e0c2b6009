"""TCP_FALLBACK, GPUDIRECT_OFF and SHM_INSTEAD_OF_P2P with their causes, from the connections of a job's processes.
Pure.

There is one finding for each code and cause; it names the ranks and hosts. What is by design is no finding: sockets
where there is no RDMA device, a vendor's own network, shared memory between GPUs of two CPU sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.nccl.log.channels import count_channels
from laggard.nccl.log.model import NcclProcess
from laggard.probes.nccl.model.job import (
    NcclJob,
    evidence_of,
    hosts_of,
    network_connections,
    ranks_of,
    rdma_connections,
    receiving_connections,
    tcp_connections,
)
from laggard.probes.nccl.rules.transport_causes import Cause, gdr_cause, shm_cause, tcp_cause
from laggard.probes.probe import finding
from laggard.text.words import ranks_text


class _SlowTransport(NamedTuple):
    """A slow transport: which processes use it, and why."""

    code: str
    summary: str
    applies: Callable[[NcclProcess, NcclJob], bool]
    cause: Callable[[NcclProcess, NcclJob], Cause | None]
    commands: tuple[str, ...]


def judge_transport(job: NcclJob) -> tuple[Finding, ...]:
    return tuple(found for slow in _SLOW_TRANSPORTS for found in _judge(slow, job))


def _judge(slow: _SlowTransport, job: NcclJob) -> Iterator[Finding]:
    causes: dict[Cause, list[NcclProcess]] = {}
    for process in job.processes:
        cause = slow.cause(process, job) if slow.applies(process, job) else None
        if cause is not None:
            same = cause._replace(line="")
            causes.setdefault(same, []).append(process)
    for cause, processes in causes.items():
        yield _finding(slow, cause, processes, job)


def _finding(slow: _SlowTransport, cause: Cause, processes: list[NcclProcess], job: NcclJob) -> Finding:
    ranks = ranks_text(ranks_of(processes))
    line = next((own.line for other in processes if (own := slow.cause(other, job)) and own.line), "")
    evidence: dict[str, object] = {
        "cause": cause.text,
        "log": line,
        **evidence_of(processes),
        "channels": dict(count_channels(connection for process in processes for connection in process.connections)),
    }
    if slow.code == "TCP_FALLBACK":
        evidence["rdma_in_the_machines"] = job.rdma
    return finding(
        slow.code,
        hosts_of(processes),
        f"{slow.summary}: {cause.text}" + (f" ({ranks})" if ranks else ""),
        evidence=evidence,
        fix=cause.fix,
        commands=slow.commands,
        severity=_severity(slow, cause, job),
    )


def _severity(slow: _SlowTransport, cause: Cause, job: NcclJob) -> Severity | None:
    """Returns a warning for sockets by choice where the machine's RDMA is not known, and for shared memory whose cause
    the log does not show: both may be right."""
    if slow.code == "TCP_FALLBACK" and cause.chosen and job.rdma is None:
        return Severity.WARNING
    if slow.code == "SHM_INSTEAD_OF_P2P" and not cause.known:
        return Severity.WARNING
    return None


def uses_tcp(process: NcclProcess, job: NcclJob) -> bool:
    """Returns whether the process uses TCP between machines that have RDMA, or may have it."""
    nodes = job.nodes(process)
    if job.rdma is False or nodes == 1:
        return False
    will_use = process.network == "Socket" and not network_connections(process) and (nodes or 0) > 1
    return will_use or bool(tcp_connections(process))


def lacks_gpudirect(process: NcclProcess, job: NcclJob) -> bool:
    """Returns whether the process uses RDMA through host memory. Receiving connections decide, or a cause in the log:
    by NCCL's default (NCCL_NET_GDR_READ), GPUs before Ampere without NVLink send from host memory, and `use ring ...
    GDR` is then 0 too."""
    if job.facts.gpudirect is False or job.nodes(process) == 1:
        return False
    connections = rdma_connections(process)
    received = receiving_connections(process)
    if received:
        return not any(connection.gdr for connection in received)
    if any(connection.gdr for connection in connections) or any(
        connection.gdr for other in job.processes for connection in receiving_connections(other)
    ):
        return False
    return bool(connections) and gdr_cause(process, job).known


def uses_host_memory(process: NcclProcess, job: NcclJob) -> bool:
    """Returns whether the process exchanges data between GPUs of one machine through host memory."""
    return job.facts.peer_to_peer is not False and any(
        connection.transport == "SHM" for connection in process.connections
    )


_SLOW_TRANSPORTS: Final = (
    _SlowTransport(
        "TCP_FALLBACK", "TCP instead of RDMA", uses_tcp, tcp_cause, ("ibv_devinfo", "ls /dev/infiniband", "ulimit -l")
    ),
    _SlowTransport(
        "GPUDIRECT_OFF",
        "RDMA goes through host memory",
        lacks_gpudirect,
        gdr_cause,
        ("lsmod | grep peermem", "cat /proc/driver/nvidia/version", "nvidia-smi topo -m"),
    ),
    _SlowTransport(
        "SHM_INSTEAD_OF_P2P",
        "GPUs exchange data through host memory",
        uses_host_memory,
        shm_cause,
        ("nvidia-smi topo -m", "nvidia-smi topo -p2p r"),
    ),
)


def count_job_channels(job: NcclJob) -> Mapping[str, int]:
    """Counts all channels of the job by transport and network, as text for people."""
    return count_channels(connection for process in job.processes for connection in process.connections)
