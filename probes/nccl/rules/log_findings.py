"""Judges a log of NCCL: findings with their causes, what could not be judged, and facts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from laggard.kit.words import counted, seconds_text
from laggard.model import Finding
from laggard.nccl.log import model as values
from laggard.nccl.log.model import NcclLog, NcclProcess, SlowTransfers
from laggard.nccl.variables import may_be_shown, parse_version
from laggard.probes.nccl.model.job import (
    HardwareFacts,
    NcclJob,
    evidence_of,
    hosts_of,
    network_connections,
    ranks_of,
    rdma_connections,
)
from laggard.probes.nccl.rules.own_diagnostics import judge_own_diagnostics
from laggard.probes.nccl.rules.rank_findings import judge_versions
from laggard.probes.nccl.rules.transport_findings import (
    count_job_channels,
    judge_transport,
    shm_cause,
    tcp_cause,
    uses_host_memory,
    uses_tcp,
)
from laggard.probes.nccl.rules.variable_rules import VariableContext, judge_environment
from laggard.probes.probe import say

_ADVICE: Final = "log with NCCL_DEBUG=INFO from the start to the first steps"
_FAILURES: Final = (values.NOT_DELIVERED, values.QUEUE_PAIR_FAILED)


def find_gaps(log: NcclLog, job: NcclJob) -> str:
    """Returns one line about what could not be judged and what to do; empty: everything was judged."""
    if not log.processes:
        return f"has no lines of NCCL about its network: {_ADVICE}"
    if log.dropped:
        return f"has more processes than can be read: {log.dropped} were left out; split it"
    return _failure(job) or _missing_channels(job) or _open_question(job)


def _failure(job: NcclJob) -> str:
    """Returns NCCL's warning of a failure that no finding explains."""
    for process in job.processes:
        hint = process.hint(*_FAILURES)
        warning = hint.text if hint else next(iter(process.warnings), "")
        if warning:
            meaning = f" ({values.HINTS[hint.kind]})" if hint else ""
            return f"NCCL warned{_on_host(process)}: {warning}{meaning}"
    stopped = next(
        (process for process in job.processes if process.hint(values.PLUGIN_FAILED) and not process.connections), None
    )
    if stopped and not any(process.connections for process in job.processes):
        return f"NCCL found no network{_on_host(stopped)}: {stopped.hints[0].text}"
    return ""


def _missing_channels(job: NcclJob) -> str:
    networks = {process.network for process in job.processes if process.network}
    if not any(process.connections for process in job.processes):
        chosen = f"says that {'/'.join(sorted(networks))} was chosen, but " if networks else ""
        return f"{chosen}lacks the channel lines (`via ...`): {_ADVICE}"
    spans = max((job.nodes(process) or 0 for process in job.processes), default=0)
    if spans > 1 and not any(network_connections(process) for process in job.processes):
        return f"lacks the channels between its {spans} nodes: {_ADVICE}"
    if job.facts.gpudirect is False:
        return ""
    connections = [connection for process in job.processes for connection in rdma_connections(process)]
    rings = any(process.ring_gdr for process in job.processes)
    if (
        connections
        and not rings
        and not any(connection.gdr or connection.direction == "receive" for connection in connections)
    ):
        return f"lacks the receiving channels, which show GPUDirect: {_ADVICE}"
    return ""


def _open_question(job: NcclJob) -> str:
    """Returns what the log would need to decide whether a slow transport is a fault."""
    if job.rdma is None and any(uses_tcp(process, job) and tcp_cause(process, job).chosen for process in job.processes):
        return "shows TCP by choice, but not whether the machines have RDMA: add their `lspci -vvv`"
    causes = [shm_cause(process, job) for process in job.processes if uses_host_memory(process)]
    if any(cause and not cause.known for cause in causes):
        return f"does not say why GPUs exchange data through host memory: {_ADVICE}, NCCL_DEBUG_SUBSYS=INIT,GRAPH"
    return ""


def _on_host(process: NcclProcess) -> str:
    return f" on {process.host}" if process.host else ""


def judge_slow_transfers(processes: Sequence[NcclProcess]) -> tuple[Finding, ...]:
    """Returns a finding for each device of each host."""
    found: dict[tuple[str, str], list[tuple[NcclProcess, SlowTransfers]]] = {}
    for process in processes:
        for slow in process.slow_transfers:
            found.setdefault((process.host, slow.device), []).append((process, slow))
    return tuple(_slow_device(host, device, found[host, device]) for host, device in sorted(found))


def _slow_device(host: str, device: str, found: Sequence[tuple[NcclProcess, SlowTransfers]]) -> Finding:
    stalled = sum(slow.lines for _, slow in found if slow.stalled)
    late = sum(slow.lines for _, slow in found if not slow.stalled)
    longest = max(slow.longest_ns for _, slow in found) / 1e9
    worst = max((slow for _, slow in found), key=lambda slow: (slow.stalled, slow.longest_ns))
    how = ((stalled, "without any end"), (late, "late"))
    what = " and ".join(f"{counted(times, 'time')} {words}" for times, words in how if times)
    evidence = {"stalled": stalled, "late": late, "longest_seconds": longest, "log": worst.text}
    evidence |= evidence_of([process for process, _ in found])
    named = {"what": what, "longest": seconds_text(longest), "name": device}
    return say("nccl", "slow_transfers", f"{host or 'the job'} {device}", evidence, **named)


_TELLS_PLATFORM = (1, 13)
"""The version from which on aws-ofi-nccl logs `platform set` (src/nccl_ofi_net.c at v1.13.2-aws, and not at
v1.9.2-aws)."""


def judge_protocol(processes: Sequence[NcclProcess]) -> tuple[Finding, ...]:
    """Returns findings where the plugin's two protocols are mixed, and where SENDRECV was chosen by a user, or for want
    of anything that the plugin knows of an EFA machine. Where the platform chose it, it is the right one there; plugins
    before 1.13 do not log that they were told by the platform."""
    by_protocol = {name: [each for each in processes if each.protocol == name] for name in ("RDMA", "SENDRECV")}
    if all(by_protocol.values()):
        return (_mixed(by_protocol["SENDRECV"], by_protocol["RDMA"]),)
    chosen = [each for each in by_protocol["SENDRECV"] if each.protocol_set_by == "user"]
    fallen_back = [each for each in by_protocol["SENDRECV"] if not each.protocol_set_by and _would_tell(each)]
    causes = (
        (chosen, "OFI_NCCL_PROTOCOL=SENDRECV asks for it"),
        (fallen_back, "the plugin did not recognise the machine"),
    )
    return tuple(_send_receive(own, cause) for own, cause in causes if own)


def _would_tell(process: NcclProcess) -> bool:
    """Whether this runs over EFA with a plugin that logs where the platform chose the protocol."""
    version = process.libfabric_plugin
    return process.provider.split(";")[0] == "efa" and version is not None and version >= _TELLS_PLATFORM


def _mixed(some: Sequence[NcclProcess], others: Sequence[NcclProcess]) -> Finding:
    evidence = {"cause": "mixed"} | evidence_of(some)
    return say("nccl", "mixed_protocols", hosts_of(some), evidence, others=hosts_of(others))


def _send_receive(processes: Sequence[NcclProcess], cause: str) -> Finding:
    evidence = {"cause": cause, "provider": processes[0].provider} | evidence_of(processes)
    return say("nccl", "sendrecv", hosts_of(processes), evidence, cause=cause)


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
