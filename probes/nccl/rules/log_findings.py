"""All that a log of NCCL gives: findings with their cause, what it lacks, and what it says. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from laggard.model import Finding
from laggard.nccl.log.model import NcclLog, NcclProcess
from laggard.nccl.variables import parse_version
from laggard.probes.nccl.model.job import Job, JobFacts, hosts_of, ranks_of
from laggard.probes.nccl.rules.log_gaps import find_gaps
from laggard.probes.nccl.rules.transport_findings import judge_transport, traffic
from laggard.probes.nccl.rules.variable_findings import judge_environment
from laggard.probes.nccl.rules.variable_rules import NcclFacts
from laggard.probes.nccl.rules.version_findings import judge_versions

_MOST_WARNINGS = 16


class LogJudgement(NamedTuple):
    findings: tuple[Finding, ...]
    gaps: str
    """What could not be judged; empty: nothing. A log with findings may lack something all the same."""
    facts: dict[str, Any]


def judge_nccl_log(log: NcclLog, facts: JobFacts) -> LogJudgement:
    """`log`: of one job, all that there is. The version is often named by one
    process alone; where it is the only one in the log, it is that of all."""
    processes = _with_version(log)
    job = Job(processes, facts)
    found = (*judge_transport(job), *judge_versions(processes), *judge_variables(job))
    return LogJudgement(found, find_gaps(log, job), _facts(log, job))


def judge_variables(job: Job) -> tuple[Finding, ...]:
    """NCCL_ENV_* of what NCCL said that it read, each once with the hosts where it was set. A name that NCCL does not
    know leaves no trace in a log."""
    found: dict[tuple[str, str, str], tuple[Finding, list[NcclProcess]]] = {}
    for process in job.processes:
        for fault in judge_environment(dict(process.variables), _nccl_facts(process, job)):
            found.setdefault((fault.code, fault.device, fault.summary), (fault, []))[1].append(process)
    return tuple(
        msgspec.structs.replace(fault, evidence={**fault.evidence, "set_on": hosts_of(own), "count": len(own)})
        for fault, own in found.values()
    )


def _nccl_facts(process: NcclProcess, job: Job) -> NcclFacts:
    local = any(connection.transport in ("P2P", "SHM") for one in job.processes for connection in one.connections)
    links = {"InfiniBand" if name.endswith("/IB") else "Ethernet" for name in process.rdma_devices or ()}
    peers = True if local else None if job.facts.gpus is None else job.facts.gpus > 1
    return NcclFacts(version=parse_version(process.version), rdma=job.rdma, links=frozenset(links), peers=peers)


def _with_version(log: NcclLog) -> tuple[NcclProcess, ...]:
    versions = {*log.versions, *(process.version for process in log.processes if process.version)}
    if len(versions) != 1:
        return log.processes
    (version,) = versions
    return tuple(process._replace(version=version) for process in log.processes)


def _facts(log: NcclLog, job: Job) -> dict[str, Any]:
    sizes = [process.world.ranks for process in job.processes if process.world]
    return {
        "lines": log.lines,
        "torn_lines": log.torn,
        "processes": len(job.processes),
        "hosts": sorted({process.host for process in job.processes if process.host})[:64],
        "ranks_seen": len(ranks_of(job.processes)),
        "ranks": max(sizes, default=None),
        "nccl_versions": _each((*(process.version for process in job.processes), *log.versions)),
        "networks": _each(process.network for process in job.processes),
        "channels": dict(traffic(job)),
        "warnings": _each(text for process in job.processes for text in process.warnings)[:_MOST_WARNINGS],
    }


def _each(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, words)))
