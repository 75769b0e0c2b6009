"""TCP_FALLBACK, GPUDIRECT_OFF, SHM_INSTEAD_OF_P2P, NCCL_VERSION_MIXED from what the ranks of a node say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laggard.model import Finding
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.transport import LOG_READ, LOG_STATES, Transport
from laggard.probes.nccl.model.job import Job, JobFacts
from laggard.probes.nccl.rules.transport_findings import judge_transport
from laggard.probes.nccl.rules.version_findings import judge_versions
from laggard.text.words import ranks_text


class TransportJudgement(NamedTuple):
    findings: tuple[Finding, ...]
    gaps: str
    """Of which ranks it is not known how they talk, and why; empty: of none."""


def judge_transports(job: str, transports: Sequence[Transport], facts: JobFacts) -> TransportJudgement:
    """Of one job's ranks on this node; `job` names it in the findings. `facts`: of this node."""
    processes = tuple(_process(job, number, transport) for number, transport in enumerate(transports))
    findings = (*judge_transport(Job(processes, facts)), *judge_versions(processes))
    return TransportJudgement(findings, _gaps(transports, facts))


def _process(job: str, number: int, transport: Transport) -> NcclProcess:
    """As if from a log, in which each rank is a process of the job. What the environment says is there even where
    NCCL was never heard to read it."""
    said = transport.process
    variables = {**dict(transport.variables), **dict(said.variables)}
    return said._replace(
        host=f"job {job}",
        pid=number,
        version=transport.nccl_version or said.version,
        variables=tuple(sorted(variables.items())),
        job_rank=transport.rank,
    )


def _gaps(transports: Iterable[Transport], facts: JobFacts) -> str:
    """A rank before its first collective has nothing to say, and one whose log is the user's says it there."""
    silent = [one for one in transports if not one.process.connections]
    if not silent:
        return ""
    ranks = ranks_text(one.rank for one in silent if one.rank is not None) or f"{len(silent)} ranks"
    reasons = sorted({LOG_STATES[one.log] if one.log != LOG_READ else "it names no channel yet" for one in silent})
    blind = [one for one in silent if facts.rdma and one.nccl_version and one.uverbs == 0]
    hint = "; they hold no RDMA device open" if blind and len(blind) == len(silent) else ""
    return f"how {ranks} talk is not known: {', '.join(reasons)}{hint}"
