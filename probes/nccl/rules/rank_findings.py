"""Judges what the ranks of a node report about NCCL: TCP_FALLBACK, GPUDIRECT_OFF, SHM_INSTEAD_OF_P2P and
NCCL_VERSION_MIXED. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laggard.model import Finding
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.transport import LOG_READ, LOG_STATES, Transport
from laggard.probes.nccl.model.job import HardwareFacts, NcclJob
from laggard.probes.nccl.rules.transport_findings import judge_transport
from laggard.probes.nccl.rules.version_findings import judge_versions
from laggard.text.words import ranks_text


class TransportJudgement(NamedTuple):
    findings: tuple[Finding, ...]
    gaps: str
    """The ranks whose transport is not known, and why; empty: it is known of all."""


def judge_rank_transports(job: str, transports: Sequence[Transport], facts: HardwareFacts) -> TransportJudgement:
    """Judges one job's ranks on this node. `job`: its name for the findings; `facts`: this node's hardware."""
    processes = tuple(_process(job, number, transport) for number, transport in enumerate(transports))
    findings = (*judge_transport(NcclJob(processes, facts)), *judge_versions(processes))
    return TransportJudgement(findings, _gaps(transports, facts))


def _process(job: str, number: int, transport: Transport) -> NcclProcess:
    """Makes a rank a process as in a log, with the NCCL variables of its environment and those that NCCL logged."""
    logged = transport.process
    variables = {**dict(transport.variables), **dict(logged.variables)}
    return logged._replace(
        host=f"job {job}",
        pid=number,
        version=transport.nccl_version or logged.version,
        variables=tuple(sorted(variables.items())),
        job_rank=transport.rank,
    )


def _gaps(transports: Iterable[Transport], facts: HardwareFacts) -> str:
    """Describes the ranks without connections: before their first collective they have none, and ranks whose log goes
    to the user report none."""
    unknown = [transport for transport in transports if not transport.process.connections]
    if not unknown:
        return ""
    ranks = ranks_text(transport.rank for transport in unknown if transport.rank is not None) or f"{len(unknown)} ranks"
    reasons = sorted(
        {LOG_STATES[transport.log] if transport.log != LOG_READ else "it names no channel yet" for transport in unknown}
    )
    without_rdma = [
        transport for transport in unknown if facts.rdma and transport.nccl_version and transport.uverbs == 0
    ]
    hint = "; they hold no RDMA device open" if without_rdma and len(without_rdma) == len(unknown) else ""
    return f"how {ranks} talk is not known: {', '.join(reasons)}{hint}"
