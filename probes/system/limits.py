"""MEMLOCK_LIMIT and OPEN_FILES_LIMIT: the kernel's limits on the processes of a job.

A job's own limits are judged where laggard runs in one or in its prolog; else those of slurmd, which all its jobs
inherit; else those of this process, which prove less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from laggard.model import Finding, Severity
from laggard.probes.errors import NotFound, Unknown, if_present
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import read_status
from laggard.probes.probe import KERNEL, Count, Fact, Probe, Thresholds, say
from laggard.probes.rdma.model.nccl_settings import site_setting
from laggard.probes.rdma.model.sysfs import device_names

_CAP_IPC_LOCK = 14  # with it the kernel does not apply the locked-memory limit (capabilities(7))
_SLURMD = (  # its processes, under cgroup v2 and v1
    "/sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs",
    "/sys/fs/cgroup/systemd/system.slice/slurmd.service/cgroup.procs",
)


class LimitThresholds(Thresholds, frozen=True):
    memlock_least_bytes: Count = 1 << 30
    """Less is critical. A rank without GPUDirect registers NCCL's host buffers: 32 channels of 4 MiB to and from two
    peers are 512 MiB, and the verbs library's queues come on top."""

    memlock_enough_bytes: Count = 16 << 30
    """Less is a warning. AWS's EFA node check asks for this much; NVIDIA's and Open MPI's guides for `unlimited`."""

    memlock_own_severity: Severity = Severity.CRITICAL
    """The severity for the limit of laggard's own process outside a job. The agent sets a warning: its limit is not
    that of jobs."""

    open_files_least: Count = 16384
    """Hard limit. Rank 0's node holds two sockets per rank at the start (torch's store, NCCL's bootstrap root): 16384
    is enough for a job of 8192 ranks. The soft limit is not judged: NCCL itself raises it to the hard one."""


class ResourceLimit(NamedTuple):
    """Infinity stands for `unlimited`."""

    soft: float
    hard: float


class LimitSource(msgspec.Struct, frozen=True):
    """The process whose limits are judged on this machine, and their file."""

    name: str
    path: str
    stands_for_jobs: bool


def check(host: Host, thresholds: LimitThresholds) -> Iterator[Finding | Fact]:
    source = _limit_source(host)
    limits = host.read(source.path)
    files, memlock = _limit(limits, "Max open files", source.path), _limit(limits, "Max locked memory", source.path)
    yield Fact("judged", source.name)
    yield Fact("open_files", _evidence(files))
    yield Fact("locked_memory_bytes", _evidence(memlock))
    if files.hard < thresholds.open_files_least:
        evidence = {**_evidence(files), "least": thresholds.open_files_least, "source": source.path}
        yield say("system", "open_files", source.name, evidence, hard=f"{files.hard:.0f}")
    devices = device_names(host)
    yield Fact("rdma_devices", devices)
    if devices:  # nothing else in a training job locks memory
        yield from _judge_memlock(host, source, memlock, thresholds)


def _judge_memlock(
    host: Host, source: LimitSource, memlock: ResourceLimit, thresholds: LimitThresholds
) -> Iterator[Finding]:
    """Judges both limits: no job can raise a hard limit; a low soft limit takes a line in a job script."""
    lowest = min(memlock)
    if lowest >= thresholds.memlock_enough_bytes:
        return
    severity, which = Severity.WARNING, "hard" if memlock.hard == lowest else "soft"
    used = _rdma_use(host)
    if memlock.hard < thresholds.memlock_least_bytes and used:
        severity = Severity.CRITICAL if source.stands_for_jobs else _own_severity(host, thresholds)
    evidence = {**_evidence(memlock), "rdma_by": used or None, "source": source.path}
    told = {"size": _size(lowest), "which": which, "unused": "" if used else "; no sign that jobs use RDMA"}
    yield say("system", "memlock", source.name, evidence, severity, **told)


def _rdma_use(host: Host) -> str:
    """Returns what shows that jobs use RDMA; empty where nothing does. An InfiniBand port or an EFA is there for it. An
    Ethernet NIC has its RDMA device whether or not somebody wants one: there the site's settings of NCCL count, and the
    module for GPUDirect RDMA, which only root loads. What a job sets for itself proves nothing of the node."""
    if site_setting(host, "NCCL_IB_DISABLE") == "1" or site_setting(host, "NCCL_NET").lower() == "socket":
        return ""
    if site_setting(host, "NCCL_IB_HCA"):
        return "NCCL_IB_HCA in /etc/nccl.conf"
    if "nvidia_peermem" in host.names("/sys/module"):
        return "nvidia_peermem is loaded"
    for name in device_names(host):
        for port in host.names(f"/sys/class/infiniband/{name}/ports"):
            layer = host.text(f"/sys/class/infiniband/{name}/ports/{port}/link_layer")
            if layer not in ("", "Ethernet"):  # EFA's is `Unknown`
                return f"{name} is {layer if layer == 'InfiniBand' else 'no Ethernet NIC'}"
    return ""


def _own_severity(host: Host, thresholds: LimitThresholds) -> Severity:
    """Returns a warning for a privileged process: the limit binds neither it nor what it starts."""
    privileged = int(read_status(host, "CapEff"), 16) >> _CAP_IPC_LOCK & 1
    return Severity.WARNING if privileged else thresholds.memlock_own_severity


def _limit_source(host: Host) -> LimitSource:
    if "SLURM_JOB_ID" not in host.variables():
        for path in _SLURMD:
            for pid in host.read_if_present(path).split():
                if _name(host, pid) == "slurmd":
                    return LimitSource("slurmd", f"/proc/{pid}/limits", True)
        return LimitSource("this process", "/proc/self/limits", False)
    return LimitSource("this job", "/proc/self/limits", True)


def _name(host: Host, pid: str) -> str:
    """Empty where the process has ended: those of slurmd's steps do so all the time. Raises Unknown where it runs and
    its name cannot be read: it may be slurmd."""
    path = f"/proc/{pid}/comm"
    try:
        text = host.read(path)
    except NotFound:
        if if_present(host.entries, f"/proc/{pid}"):
            raise
        return ""
    if not text:
        raise Unknown(f"{path} is empty")
    return text.strip()


def _limit(text: str, name: str, path: str) -> ResourceLimit:
    for line in text.splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            if len(words) >= 2 and all(word == "unlimited" or word.isdecimal() for word in words[:2]):
                soft, hard = (float("inf") if word == "unlimited" else float(word) for word in words[:2])
                return ResourceLimit(soft, hard)
    raise Unknown(f"{path} has no readable line {name!r}")


def _evidence(limit: ResourceLimit) -> dict[str, int | str]:
    return {name: "unlimited" if value == float("inf") else int(value) for name, value in limit._asdict().items()}


def _size(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1024:.3g} KiB"


PROBE: Final = Probe("limits", check, LimitThresholds(), group=KERNEL)
