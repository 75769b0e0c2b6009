"""TCP_FALLBACK, GPUDIRECT_OFF and SHM_INSTEAD_OF_P2P with their causes, from the connections of a job's processes.
Pure.

There is one finding for each code and cause; it names the ranks and hosts. What is by design is no finding: sockets
where there is no RDMA device, a vendor's own network, shared memory between GPUs of two CPU sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.words import ranks_text
from laggard.model import Finding, Severity
from laggard.nccl.log import model as values
from laggard.nccl.log.model import Connection, Hint, NcclProcess, count_channels
from laggard.nccl.variables import parse_level, parse_number, parse_version
from laggard.probes.nccl.model.job import (
    NcclJob,
    evidence_of,
    hosts_of,
    network_connections,
    ranks_of,
    rdma_connections,
    tcp_connections,
)
from laggard.probes.probe import finding

# The reasons why a process uses a slow transport, by its log. Pure.
#
# Variables are checked before NCCL's hints, because a variable explains what NCCL then did not find. Sources: NCCL's
# source (src/transport/net_ib, src/graph/paths.cc) and its troubleshooting guide.

_REMOVE: Final = "Remove {} from the job's environment and from nccl.conf."
_IN_CONTAINER: Final = "/dev/infiniband, rdma-core and an unlimited memlock in the job's container"
_NEAR: Final = ("NVL", "NVB", "C2C", "PIX", "PXB")
"""The distances over which NCCL uses peer-to-peer by default (src/graph/paths.cc: up to PXB)."""


class Cause(NamedTuple):
    text: str
    """Completes `TCP instead of RDMA: `."""
    fix: str
    line: str = ""
    """The line of NCCL that shows it."""
    chosen: bool = False
    """A variable or the job's code requests it, perhaps on purpose."""
    known: bool = True
    """False: the log does not show the cause."""


def tcp_cause(process: NcclProcess, job: NcclJob) -> Cause:
    related = job.related(process)
    if parse_number(_variable(related, "NCCL_IB_DISABLE")):
        return _chosen("NCCL_IB_DISABLE", _variable(related, "NCCL_IB_DISABLE"))
    if _variable(related, "NCCL_NET").lower() == "socket":
        return _chosen("NCCL_NET", "Socket")
    provider = next((each.provider for each in related if each.provider.split(";")[0] in ("tcp", "sockets")), "")
    if provider:
        return Cause(
            f"libfabric chose its provider {provider}", f"Bring libfabric's RDMA provider and {_IN_CONTAINER}."
        )
    order = values.PLUGIN_MISSING, values.NO_LIBRARY, values.DEVICE_REFUSED, values.NO_PROVIDER, values.NO_DEVICE
    hint = _first_hint(related, *order)
    if hint is None:
        hint = _first_hint(related, values.PLUGIN_FAILED, values.QUEUE_PAIR_FAILED)
    if (
        hint is None
        and "Socket" in process.networks_tried
        and (process.rdma_devices or "IB" not in process.networks_tried)
    ):
        return _socket_requested(bool(process.rdma_devices))
    if hint is None:
        return _not_logged("INIT,NET", "`ibv_devinfo` in the job's own environment shows whether it can reach RDMA.")
    return _cause_of_hint(hint, _variable(related, "NCCL_IB_HCA"))


def _socket_requested(found: bool) -> Cause:
    """Returns the cause where NCCL used sockets on request: it does not log NCCL_NET. Since 2.27 it finds RDMA devices
    and passes them over; older versions do not look for them."""
    action = "found RDMA and passed it over" if found else "did not look for RDMA"
    fix = "Look for NCCL_NET=Socket in the job's environment and nccl.conf, and for netName=Socket in its code."
    return Cause(f"NCCL {action}: Socket was requested", fix, chosen=True)


def _cause_of_hint(hint: Hint, selection: str) -> Cause:
    if hint.kind == values.NO_LIBRARY:
        return Cause("libibverbs is missing", "Install rdma-core (libibverbs1) in the job's image.", hint.text)
    if hint.kind == values.PLUGIN_MISSING:
        fix = "Install it in the job's image (of EFA: aws-ofi-nccl), and name its folder in LD_LIBRARY_PATH."
        return Cause(values.HINTS[hint.kind], fix, hint.text)
    if hint.kind == values.NO_DEVICE and selection:
        fix = "Compare it with `ibv_devinfo`: names, ports in state ACTIVE."
        return Cause(f"NCCL_IB_HCA={selection} selects no active device", fix, hint.text)
    if hint.kind == values.NO_DEVICE:
        fix = f"`ibv_devinfo` in the job's own environment must show an ACTIVE port; it needs {_IN_CONTAINER}."
        return Cause("no active RDMA device is visible to the job", fix, hint.text)
    return Cause(values.HINTS[hint.kind], f"Look for what it names; the job needs {_IN_CONTAINER}.", hint.text)


def gdr_cause(process: NcclProcess, job: NcclJob) -> Cause:
    related = job.related(process)
    set_level = _variable(related, "NCCL_NET_GDR_LEVEL")
    if parse_level(set_level) == "LOC":
        return _chosen("NCCL_NET_GDR_LEVEL", set_level)
    module = _first_hint(related, values.GDR_NO_MODULE)
    if module:
        fix = "Load nvidia_peermem, or run the driver's open kernel modules (DMA-BUF): see PEERMEM_MISSING."
        return Cause("neither nvidia_peermem nor DMA-BUF", fix, module.text)
    too_far = _first_hint(related, values.GDR_FAR)
    if too_far:
        text = f"NCCL_NET_GDR_LEVEL={set_level} forbids it" if set_level else "GPU and NIC are too far apart"
        fix = "Give each rank the NIC on its GPU's PCIe switch; virtual machines need NCCL_TOPO_FILE."
        return Cause(text, fix, too_far.text)
    return _not_logged("INIT,NET", "See PEERMEM_MISSING, ACS_ENABLED and NUMA_MISMATCH of the node.")


def shm_cause(process: NcclProcess, job: NcclJob) -> Cause | None:
    """Returns why GPUs of one machine exchange data through host memory; None where that is right, because they are too
    far apart for peer-to-peer."""
    related = job.related(process)
    if parse_number(_variable(related, "NCCL_P2P_DISABLE")) == 1:
        return _chosen("NCCL_P2P_DISABLE", "1")
    set_level = _variable(related, "NCCL_P2P_LEVEL")
    if parse_level(set_level) == "LOC":  # up to 2.22 NCCL_P2P_DISABLE=1 is logged as this
        return _chosen("NCCL_P2P_LEVEL", set_level, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL")
    hint = _first_hint(related, values.P2P_REFUSED, values.P2P_FAILED, values.NO_IPC)
    if hint:
        return Cause(values.HINTS[hint.kind], _P2P_FIX[hint.kind], hint.text)
    distance = _distance(process, job)
    if distance.startswith("NV") or distance in _NEAR:
        text = f"NCCL_P2P_LEVEL={set_level} forbids it" if set_level else f"their distance is {distance}"
        return Cause(text, "Compare `nvidia-smi topo -m` and `nvidia-smi topo -p2p r`; see P2P_DISABLED.")
    if distance or _by_topology(process, related):
        return None
    return _not_logged("INIT,GRAPH", "Compare `nvidia-smi topo -m` and `nvidia-smi topo -p2p r`; see P2P_DISABLED.")


_P2P_FIX: Final = {
    values.P2P_REFUSED: "`nvidia-smi topo -p2p r`; then P2P_DISABLED, ACS_ENABLED and IOMMU_ENABLED of the node.",
    values.P2P_FAILED: "Let each process see all GPUs of the job (CUDA_VISIBLE_DEVICES, --gpus), with --ipc=host.",
    values.NO_IPC: "Run the job's containers with --ipc=host and one process namespace for all ranks.",
}


def _by_topology(process: NcclProcess, related: Iterable[NcclProcess]) -> bool:
    """Returns whether the topology explains it: peer-to-peer works for closer pairs, or NCCL 2.12 or newer logged the
    start, in which it reports that peer-to-peer is refused."""
    if any(
        connection.transport == "P2P"
        for each in related
        if each.host == process.host
        for connection in each.connections
    ):
        return True
    return process.started and parse_version(process.version) >= (2, 12)


def _distance(process: NcclProcess, job: NcclJob) -> str:
    """Returns the distance of the nearest pair of GPUs that uses shared memory, from the log's GRAPH lines; empty: not
    known."""
    same_host = [each for each in job.processes if each.host == process.host]
    links = {frozenset(link[:2]): link[2] for each in same_host for link in each.links}
    bus = {
        communicator.rank: communicator.bus_id
        for each in same_host
        for communicator in each.communicators
        if communicator.bus_id
    }
    pairs = {pair for connection in process.connections if connection.transport == "SHM" for pair in connection.pairs}
    known = [links.get(frozenset((bus.get(each, ""), bus.get(other, ""))), "") for each, other in pairs]
    order = (*_NEAR, "PHB", "NODE", "SYS")
    return min(filter(None, known), key=lambda word: order.index(word) if word in order else 0, default="")


def _variable(related: Iterable[NcclProcess], name: str) -> str:
    return next((value for process in related if (value := process.variable(name)) is not None), "")


def _first_hint(related: Sequence[NcclProcess], *kinds: str) -> Hint | None:
    return next((hint for kind in kinds for process in related if (hint := process.hint(kind))), None)


def _chosen(name: str, value: str, remove: str = "") -> Cause:
    return Cause(f"{name}={value} is set", _REMOVE.format(remove or name), chosen=True)


def _not_logged(subsystems: str, fix: str) -> Cause:
    text = "the log does not say why"
    return Cause(text, f"{fix} Log with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS={subsystems} from the start.", known=False)


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
    received = _receiving(process)
    if received:
        return not any(connection.gdr for connection in received)
    if any(connection.gdr for connection in connections) or any(
        connection.gdr for other in job.processes for connection in _receiving(other)
    ):
        return False
    return bool(connections) and gdr_cause(process, job).known


def _receiving(process: NcclProcess) -> list[Connection]:
    return [connection for connection in rdma_connections(process) if connection.direction == "receive"]


def uses_host_memory(process: NcclProcess) -> bool:
    """Returns whether the process exchanges data between GPUs of one machine through host memory."""
    return any(connection.transport == "SHM" for connection in process.connections)


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
        lambda process, job: uses_host_memory(process),
        shm_cause,
        ("nvidia-smi topo -m", "nvidia-smi topo -p2p r"),
    ),
)


def count_job_channels(job: NcclJob) -> Mapping[str, int]:
    """Counts all channels of the job by transport and network, as text for people."""
    return count_channels(connection for process in job.processes for connection in process.connections)
