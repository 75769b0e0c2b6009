"""TCP_FALLBACK, GPUDIRECT_OFF, SHM_INSTEAD_OF_P2P from what processes say of themselves, with the cause. Pure.

One finding for each code and cause, which names the ranks and hosts. What is by design is no finding: sockets where
no RDMA device is, a vendor's own network, shared memory between GPUs on two sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.nccl.log.channels import count_channels
from laggard.nccl.log.model import NcclProcess
from laggard.probes.nccl.model.job import (
    Job,
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


class _Slow(NamedTuple):
    """One way to talk slowly."""

    code: str
    summary: str
    does: Callable[[NcclProcess, Job], bool]
    cause: Callable[[NcclProcess, Job], Cause | None]
    commands: tuple[str, ...]


def judge_transport(job: Job) -> tuple[Finding, ...]:
    return tuple(found for slow in _SLOW for found in _judge(slow, job))


def _judge(slow: _Slow, job: Job) -> Iterator[Finding]:
    causes: dict[Cause, list[NcclProcess]] = {}
    for process in job.processes:
        cause = slow.cause(process, job) if slow.does(process, job) else None
        if cause is not None:
            same = cause._replace(line="")
            causes.setdefault(same, []).append(process)
    for cause, processes in causes.items():
        yield _finding(slow, cause, processes, job)


def _finding(slow: _Slow, cause: Cause, processes: list[NcclProcess], job: Job) -> Finding:
    ranks = ranks_text(ranks_of(processes))
    line = next((told.line for one in processes if (told := slow.cause(one, job)) and told.line), "")
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


def _severity(slow: _Slow, cause: Cause, job: Job) -> Severity | None:
    """Sockets that somebody chose may be right for a machine of which nothing is known, and so may shared memory
    without a reason in the log."""
    if slow.code == "TCP_FALLBACK" and cause.chosen and job.rdma is None:
        return Severity.WARNING
    if slow.code == "SHM_INSTEAD_OF_P2P" and not cause.known:
        return Severity.WARNING
    return None


def talks_tcp(process: NcclProcess, job: Job) -> bool:
    """Over TCP between machines, where RDMA is there or may be."""
    nodes = job.nodes(process)
    if job.rdma is False or nodes == 1:
        return False
    chose = process.network == "Socket" and not network_connections(process) and (nodes or 0) > 1
    return chose or bool(tcp_connections(process))


def lacks_gpudirect(process: NcclProcess, job: Job) -> bool:
    """Over RDMA, and through host memory. Receiving decides, or a reason in the log: GPUs before Ampere without
    NVLink send from host memory by NCCL's own choice (NCCL_NET_GDR_READ), and then `use ring ... GDR` is 0 too."""
    if job.facts.gpudirect is False or job.nodes(process) == 1:
        return False
    connections = rdma_connections(process)
    received = receiving_connections(process)
    if received:
        return not any(connection.gdr for connection in received)
    if any(connection.gdr for connection in connections) or any(
        connection.gdr for one in job.processes for connection in receiving_connections(one)
    ):
        return False
    return bool(connections) and gdr_cause(process, job).known


def uses_host_memory(process: NcclProcess, job: Job) -> bool:
    """Between GPUs of one machine."""
    return job.facts.peer_to_peer is not False and any(
        connection.transport == "SHM" for connection in process.connections
    )


_SLOW: Final = (
    _Slow(
        "TCP_FALLBACK", "TCP instead of RDMA", talks_tcp, tcp_cause, ("ibv_devinfo", "ls /dev/infiniband", "ulimit -l")
    ),
    _Slow(
        "GPUDIRECT_OFF",
        "RDMA goes through host memory",
        lacks_gpudirect,
        gdr_cause,
        ("lsmod | grep peermem", "cat /proc/driver/nvidia/version", "nvidia-smi topo -m"),
    ),
    _Slow(
        "SHM_INSTEAD_OF_P2P",
        "GPUs talk by host memory",
        uses_host_memory,
        shm_cause,
        ("nvidia-smi topo -m", "nvidia-smi topo -p2p r"),
    ),
)


def traffic(job: Job) -> Mapping[str, int]:
    """All channels of the job by way, for people."""
    return count_channels(connection for process in job.processes for connection in process.connections)
