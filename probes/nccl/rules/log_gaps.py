"""What a log of NCCL lacks for a judgement: a log that is cut off, or that logged too little, is never fine. Pure."""

from __future__ import annotations

from typing import Final

from laggard.nccl.log import model as values
from laggard.nccl.log.model import NcclLog, NcclProcess
from laggard.probes.nccl.model.job import Job, network_connections, rdma_connections
from laggard.probes.nccl.rules.transport_causes import shm_cause, tcp_cause
from laggard.probes.nccl.rules.transport_findings import talks_tcp, uses_host_memory

_ASK: Final = "log with NCCL_DEBUG=INFO from the start to the first steps"
_TROUBLE: Final = (values.NOT_DELIVERED, values.QUEUE_PAIR_FAILED)


def find_gaps(log: NcclLog, job: Job) -> str:
    """One line: what could not be judged, and what to do; empty: everything was."""
    if not log.processes:
        return f"holds nothing that NCCL says of its network: {_ASK}"
    if log.dropped:
        return f"is of more processes than are read: {log.dropped} were left out; give it in parts"
    return _failure(job) or _missing_channels(job) or _reason(job)


def _failure(job: Job) -> str:
    """What NCCL warned of and no finding explains."""
    for process in job.processes:
        hint = process.hint(*_TROUBLE)
        said = hint.text if hint else next(iter(process.warnings), "")
        if said:
            meaning = f" ({values.HINTS[hint.kind]})" if hint else ""
            return f"NCCL warned{_of(process)}: {said}{meaning}"
    stopped = next((one for one in job.processes if one.hint(values.PLUGIN_FAILED) and not one.connections), None)
    if stopped and not any(one.connections for one in job.processes):
        return f"NCCL found no network{_of(stopped)}: {stopped.hints[0].text}"
    return ""


def _missing_channels(job: Job) -> str:
    networks = {process.network for process in job.processes if process.network}
    if not any(process.connections for process in job.processes):
        chosen = f"says that {'/'.join(sorted(networks))} was chosen, but " if networks else ""
        return f"{chosen}lacks the channel lines (`via ...`): {_ASK}"
    spans = max((job.nodes(process) or 0 for process in job.processes), default=0)
    if spans > 1 and not any(network_connections(process) for process in job.processes):
        return f"lacks the channels between its {spans} nodes: {_ASK}"
    if job.facts.gpudirect is False:
        return ""
    connections = [connection for process in job.processes for connection in rdma_connections(process)]
    rings = any(process.ring_gdr for process in job.processes)
    if (
        connections
        and not rings
        and not any(connection.gdr or connection.direction == "receive" for connection in connections)
    ):
        return f"lacks the receiving channels, which tell of GPUDirect: {_ASK}"
    return ""


def _reason(job: Job) -> str:
    """A way that is slow, of which the log does not say whether it is wrong."""
    if job.rdma is None and any(talks_tcp(one, job) and tcp_cause(one, job).chosen for one in job.processes):
        return "runs over TCP by choice; whether the machines have RDMA is not in it: add their `lspci -vvv`"
    shared = [shm_cause(one, job) for one in job.processes if uses_host_memory(one, job)]
    if any(cause and not cause.known for cause in shared):
        return f"does not say why GPUs talk by host memory: {_ASK}, NCCL_DEBUG_SUBSYS=INIT,GRAPH"
    return ""


def _of(process: NcclProcess) -> str:
    return f" on {process.host}" if process.host else ""
