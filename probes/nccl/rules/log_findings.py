"""Judges a log of NCCL: findings with their causes, what could not be judged, and facts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from laggard.model import Finding
from laggard.nccl.log.model import NcclLog, NcclProcess
from laggard.nccl.variables import may_be_shown, parse_version
from laggard.probes.nccl.model.job import HardwareFacts, NcclJob, hosts_of, ranks_of
from laggard.probes.nccl.rules.attention_findings import judge_attention
from laggard.probes.nccl.rules.log_gaps import find_gaps
from laggard.probes.nccl.rules.network_findings import judge_protocol, judge_slow_transfers
from laggard.probes.nccl.rules.own_diagnostics import judge_own_diagnostics
from laggard.probes.nccl.rules.transport_findings import count_job_channels, judge_transport
from laggard.probes.nccl.rules.variable_findings import judge_environment
from laggard.probes.nccl.rules.variable_rules import VariableContext
from laggard.probes.nccl.rules.version_findings import judge_versions

_MAX_WARNINGS = 16
_MAX_HOSTS = 1000


class LogJudgement(NamedTuple):
    findings: tuple[Finding, ...]
    gaps: str
    """The parts that could not be judged, and why; empty: everything was judged. A log with findings may have gaps as
    well."""
    facts: dict[str, Any]


def judge_nccl_log(log: NcclLog, facts: HardwareFacts) -> LogJudgement:
    """Judges all that was logged of one job. Often only one process logs NCCL's version; where it is the only version
    in the log, it is taken for that of all."""
    processes = _with_version(log)
    job = NcclJob(processes, facts)
    found = (
        *judge_transport(job),
        *judge_versions(processes),
        *judge_variables(job),
        *judge_own_diagnostics(processes),
        *judge_attention(processes),
        *judge_slow_transfers(processes),
        *judge_protocol(processes),
    )
    return LogJudgement(found, find_gaps(log, job), _facts(log, job))


def judge_variables(job: NcclJob) -> tuple[Finding, ...]:
    """Returns findings NCCL_ENV_* about the variables that NCCL logged, each once with the hosts where it was set. NCCL
    logs what it has read: a name that the table lacks is newer, and no fault."""
    found: dict[tuple[str, str, str], tuple[Finding, list[NcclProcess]]] = {}
    for process in job.processes:
        known = {name: value for name, value in process.variables if may_be_shown(name)}
        for fault in judge_environment(known, _context(process, job)):
            found.setdefault((fault.code, fault.device, fault.summary), (fault, []))[1].append(process)
    return tuple(
        msgspec.structs.replace(fault, evidence={**fault.evidence, "set_on": hosts_of(own), "count": len(own)})
        for fault, own in found.values()
    )


def _context(process: NcclProcess, job: NcclJob) -> VariableContext:
    local = any(connection.transport in ("P2P", "SHM") for each in job.processes for connection in each.connections)
    several_gpus = True if local else None if job.facts.gpus is None else job.facts.gpus > 1
    return VariableContext(
        version=parse_version(process.version),
        rdma=job.rdma,
        link_layers=frozenset(_link_layers((process,))),
        several_gpus=several_gpus,
    )


def _nic_kinds(processes: Iterable[NcclProcess]) -> dict[str, str]:
    """The kind of NIC that each host's NCCL uses, of at most a thousand hosts."""
    found: dict[str, str] = {}
    for process in processes:
        layers = sorted(_link_layers((process,)))
        if process.host and process.network and len(found) < _MAX_HOSTS:
            found[process.host] = "/".join(layers) if process.network == "IB" and layers else process.network
    return found


def _link_layers(processes: Iterable[NcclProcess]) -> set[str]:
    names = [name for process in processes for name in process.rdma_devices or ()]
    return {"InfiniBand" if name.endswith("/IB") else "Ethernet" for name in names}


def _with_version(log: NcclLog) -> tuple[NcclProcess, ...]:
    versions = {*log.versions, *(process.version for process in log.processes if process.version)}
    if len(versions) != 1:
        return log.processes
    (version,) = versions
    return tuple(process._replace(version=version) for process in log.processes)


def _facts(log: NcclLog, job: NcclJob) -> dict[str, Any]:
    sizes = [process.world.ranks for process in job.processes if process.world]
    return {
        "lines": log.lines,
        "torn_lines": log.torn,
        "processes": len(job.processes),
        "hosts": sorted({process.host for process in job.processes if process.host})[:64],
        "ranks_seen": len(ranks_of(job.processes)),
        "ranks": max(sizes, default=None),
        "nccl_versions": _distinct((*(process.version for process in job.processes), *log.versions)),
        "link_layers": sorted(_link_layers(job.processes)),
        "nic_kinds": _nic_kinds(job.processes),
        "networks": _distinct(process.network for process in job.processes),
        "libfabric_protocols": _distinct(process.protocol for process in job.processes),
        "channels": dict(count_job_channels(job)),
        "warnings": _distinct(text for process in job.processes for text in process.warnings)[:_MAX_WARNINGS],
    }


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))
