"""The gaps of a log of NCCL, which it has for a verdict: a log that is cut off, or that has too little, is never ok.
Pure."""

from __future__ import annotations

from typing import Final

from laggard.nccl.log import model as values
from laggard.nccl.log.model import NcclLog, NcclProcess
from laggard.probes.nccl.model.job import NcclJob, network_connections, rdma_connections
from laggard.probes.nccl.rules.transport_causes import shm_cause, tcp_cause
from laggard.probes.nccl.rules.transport_findings import uses_host_memory, uses_tcp

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
    causes = [shm_cause(process, job) for process in job.processes if uses_host_memory(process, job)]
    if any(cause and not cause.known for cause in causes):
        return f"does not say why GPUs exchange data through host memory: {_ADVICE}, NCCL_DEBUG_SUBSYS=INIT,GRAPH"
    return ""


def _on_host(process: NcclProcess) -> str:
    return f" on {process.host}" if process.host else ""
