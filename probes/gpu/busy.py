"""GPU_BUSY: processes on the GPUs of a job that has not begun, and on a node of SLURM's those that no job ever had.

Critical is a process of a user, left over or started beside the scheduler. One of root or of another account of the
system is a service or a test that the site runs, and a warning: the kernel says whose it is, and a name does not. A
process of another job that lives here is in its place: gres/shard and gres/mps share a GPU, and a suspended job stays.

In a prolog the job's GPUs should be idle. At other times jobs may run. Then a process counts of a user
who came by ssh past SLURM, and memory that is held on an idle node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.kit.words import lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.readings import query_gpus, query_nvml, read_field
from laggard.probes.gpu.model.services import GPU_SERVICES, gpus_of_job, is_of_session, is_service, own_ring
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import FIRST_USER, living_jobs, read_process
from laggard.probes.nvml.model import Gpu, GpuProcess
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, say


class BusyThresholds(Thresholds, frozen=True):
    idle_expected: bool = False
    """No process should be on the GPUs now, as in a prolog of SLURM's. The profile `prolog` sets it."""

    ignore: tuple[str, ...] = GPU_SERVICES
    """Services that hold a context of their own: their names in /proc/PID/comm, which is cut at 15 characters.
    A process of such a name is one where root or systemd started it."""


def check(host: Host, thresholds: BusyThresholds) -> Iterator[Finding | Fact]:
    gpus, environ = query_gpus(host), host.variables()
    begins = thresholds.idle_expected or environ.get("SLURM_SCRIPT_CONTEXT", "").startswith("prolog")
    job = gpus_of_job(environ, query_nvml(host)) if begins else None
    judged = gpus if job is None else job.gpus
    reading = read_field([gpu for gpu in judged if not gpu.mig], "processes", "a list of processes")
    found: list[Finding] = []
    for gpu, processes in reading.values:
        strangers = processes if begins else [it for it in processes if _came_past_slurm(host, it.pid)]
        unexpected = _unexpected(host, strangers, thresholds.ignore)
        if unexpected:
            # Where it is not known which GPUs the job was given, the process may belong to another job.
            of_users = [each for each in unexpected if _is_a_users_of_no_job(host, each[0].pid)]
            past = any(_came_past_slurm(host, it.pid) for it, _ in of_users)
            severity = Severity.CRITICAL if of_users and (job or past) else Severity.WARNING
            found.append(_finding(gpu, of_users or unexpected, severity, len(of_users)))
    if not _is_shared_with_the_host(host):
        found += _left_memory(host, judged, begins, job is not None)
    if not (begins or found):
        raise NotApplicable("jobs may run now: only a prolog expects idle GPUs")
    yield from found
    if job is not None and job.missing:
        raise Unknown(f"the job was given device numbers {list(job.missing)}, which NVML does not list")
    reading.raise_if_incomplete()


_LOGIN: Final = lazy_pattern(r":/user\.slice/user-\d+\.slice/session-")
LEFT_RATIO: Final = 0.1
"""The share of a GPU's memory that may be in use without a process that computes: the driver's own part is less than
1 GiB, and so is what a display takes."""


def _is_shared_with_the_host(host: Host) -> bool:
    """Whether GPUs' memory is the host's, too, where any process may have a part: on Grace it is a node without CPUs
    (NVreg_CoherentGPUMemoryMode)."""
    nodes = "/sys/devices/system/node"
    lists = [f"{nodes}/{name}/cpulist" for name in host.names(nodes) if name.startswith("node")]
    return any(host.read_if_present(path) == "" for path in lists)


def _left_memory(host: Host, gpus: Sequence[Gpu], begins: bool, of_job: bool) -> Iterator[Finding]:
    """Memory that a process has left behind: the driver did not get it back. Beside other jobs (the node is not idle)
    it is a warning: one of them may draw on this GPU, and what draws is no process that computes. `begins`: a job
    does; `of_job`: whether its GPUs are known."""
    for gpu in gpus:
        used = gpu.memory_used_ratio or 0.0
        if used <= LEFT_RATIO or gpu.processes != () or gpu.mig:
            continue
        idle = living_jobs(host).idle
        if idle or begins:
            evidence = {"memory_used_ratio": round(used, 3), **({} if idle else {"of_users": 0})}
            severity = Severity.CRITICAL if idle and (of_job or not begins) else Severity.WARNING
            yield say("gpu", "memory_left", gpu.device, evidence, severity, used=f"{used:.0%}")


def _came_past_slurm(host: Host, pid: int) -> bool:
    """Whether it is a process of a user's login on a node of SLURM's. A job's containers have cgroups of their own. Few
    processes on GPUs are such, and so it is seldom asked what all processes are."""
    if read_process(host, pid).user < FIRST_USER or not _LOGIN.search(host.text(f"/proc/{pid}/cgroup")):
        return False
    living = living_jobs(host)
    return living.scheduled and living.all_seen


def _unexpected(host: Host, processes: Sequence[GpuProcess], ignore: tuple[str, ...]) -> list[tuple[GpuProcess, str]]:
    """Returns the processes, with their names, that are no ignored service and of no job that lives here. Our own ring
    ends when a job comes."""
    ring = own_ring(host)
    named = [
        (process, host.text(f"/proc/{process.pid}/comm"))
        for process in processes
        if not is_of_session(host, process.pid, ring)
    ]
    return [
        (process, name)
        for process, name in named
        if not is_service(host.text, process.pid, ignore) and not living_jobs(host).has(host, process.pid)
    ]


def _is_a_users_of_no_job(host: Host, pid: int) -> bool:
    """Returns whether the kernel shows that a person's account runs the process, in no job that lives. What cannot be
    read, as from another PID namespace, shows nothing."""
    return living_jobs(host).has(host, pid) is False and read_process(host, pid).user >= FIRST_USER


def _finding(gpu: Gpu, unexpected: list[tuple[GpuProcess, str]], severity: Severity, of_users: int) -> Finding:
    first, name = unexpected[0]
    more = f" and {len(unexpected) - 1} more" if len(unexpected) > 1 else ""
    listed = [{"pid": it.pid, "name": name, "used_bytes": it.used_bytes} for it, name in unexpected[:20]]
    evidence = {"processes": listed, "of_users": of_users}
    told = {"pid": first.pid, "name": f" ({name})" if name else "", "more": more}
    return say("gpu", "busy", gpu.device, evidence, severity, action="USER" if of_users else "", **told)


PROBE: Final = Probe("gpu_busy", check, BusyThresholds(), group=GPU)
