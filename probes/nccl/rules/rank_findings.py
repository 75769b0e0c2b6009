"""Judges what the ranks of a node report about NCCL: TCP_FALLBACK, GPUDIRECT_OFF, SHM_INSTEAD_OF_P2P and
NCCL_VERSION_MIXED. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from laggard.kit.words import ranks_text
from laggard.model import Finding
from laggard.nccl.log.model import MISMATCH, NcclProcess
from laggard.nccl.transport import LOG_READ, LOG_STATES, Transport
from laggard.nccl.variables import version_of_code
from laggard.probes.nccl.model.job import HardwareFacts, NcclJob, evidence_of, hosts_of, ranks_of
from laggard.probes.nccl.rules.transport_findings import judge_transport
from laggard.probes.probe import finding

# NCCL_VERSION_MIXED: ranks of one communicator that run different versions of NCCL. Pure.
#
# A file may hold several jobs, each with its own version. Only ranks that belong to one communicator are compared:
# ranks with the same `commId` (2.18 and newer), else ranks with the same communicator size of which none occurs twice.

_MISMATCH = re.compile(r"rank (\d{1,9}) version (\d{1,9}) rank (\d{1,9}) version (\d{1,9})")
_FIX = (
    "Run one image or one environment on all nodes; look for a system-wide NCCL in LD_LIBRARY_PATH, LD_PRELOAD and "
    "/etc/ld.so.conf.d."
)
_COMMANDS = ("ldconfig -p | grep libnccl", "python -c 'import torch; print(torch.cuda.nccl.version())'")


def judge_versions(processes: tuple[NcclProcess, ...]) -> tuple[Finding, ...]:
    """Returns at most one finding: of NCCL's own warning, else of the first communicator whose ranks differ."""
    for process in processes:
        hint = process.hint(MISMATCH)
        match = _MISMATCH.search(hint.text) if hint else None
        if hint and match:
            ranks_by_version = {
                version_of_code(int(match[2])): [int(match[1])],
                version_of_code(int(match[4])): [int(match[3])],
            }
            return (_finding(ranks_by_version, [process], hint.text),)
    for members in _communicators(processes):
        versions: dict[str, list[NcclProcess]] = {}
        for process in members:
            if process.version:
                versions.setdefault(process.version, []).append(process)
        ranks_by_version = {version: list(ranks_of(own)) for version, own in versions.items()}
        if _mixed(ranks_by_version):
            return (_finding(ranks_by_version, members, ""),)
    return ()


def _mixed(versions: Mapping[str, list[int]]) -> bool:
    """Returns whether there are several versions. A rank with two versions, or a version that another one begins with,
    comes from a torn line and does not count."""
    ranks = [rank for own in versions.values() for rank in own]
    whole = [version for version in versions if not any(other.startswith(f"{version}.") for other in versions)]
    return len(whole) > 1 and len(set(ranks)) == len(ranks)


def _communicators(processes: tuple[NcclProcess, ...]) -> Iterator[list[NcclProcess]]:
    named: dict[str, list[NcclProcess]] = {}
    sized: dict[int, list[NcclProcess]] = {}
    for process in processes:
        for own in process.communicators:
            if own.identity:
                named.setdefault(own.identity, []).append(process)
        world = process.world
        if world and not world.identity:
            sized.setdefault(world.ranks, []).append(process)
    yield from named.values()
    yield from (members for members in sized.values() if len({process.rank for process in members}) == len(members))


def _finding(versions: Mapping[str, list[int]], processes: list[NcclProcess], line: str) -> Finding:
    words = [f"{version} on {ranks_text(ranks) or 'some'}" for version, ranks in sorted(versions.items())]
    return finding(
        "NCCL_VERSION_MIXED",
        hosts_of(processes),
        f"ranks of one communicator run different NCCLs: {'; '.join(words)}",
        evidence={"versions": {version: ranks[:64] for version, ranks in versions.items()}, "log": line}
        | evidence_of(processes),
        fix=_FIX,
        commands=_COMMANDS,
    )


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
