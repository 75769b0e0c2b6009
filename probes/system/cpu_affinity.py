"""CPU_AFFINITY: a NUMA node with GPUs of which a job may use no processors, or too few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import starmap
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown, if_present, or_none
from laggard.probes.gpu.model.pci_devices import PciGpu, read_pci_gpus
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import format_cpu_list, parse_cpu_list, read_status
from laggard.probes.probe import KERNEL, Count, Fact, Probe, Thresholds, finding

_CPU, _NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"
_FIX = (
    "Give the job the processors of its GPUs' NUMA nodes: remove isolcpus= from the kernel's command line and "
    "CPUAffinity= from the unit of slurmd or the container runtime, bring offline processors online, and bind tasks "
    "by GPU (`--gpu-bind=closest`)."
)


class AffinityThresholds(Thresholds, frozen=True):
    least_cpus_per_gpu: Count = 1
    """Usable processors on a NUMA node for each GPU there; fewer are a warning."""


def check(host: Host, thresholds: AffinityThresholds) -> Iterator[Finding | Fact]:
    gpus = read_pci_gpus(host)
    if not gpus:
        raise NotApplicable("no NVIDIA GPU in the PCI tree")
    online = _list(host, f"{_CPU}/online")
    allowed = parse_cpu_list(read_status(host, "Cpus_allowed_list"), "/proc/self/status")
    isolated = if_present(_list, host, f"{_CPU}/isolated") or frozenset()
    lists = {"allowed": allowed, "isolated": isolated, "offline": _list(host, f"{_CPU}/present") - online}
    cpu_lists = {name: format_cpu_list(cpus) for name, cpus in lists.items()}
    yield from starmap(Fact, cpu_lists.items())
    nodes = _nodes(host, gpus, online)
    usable = (allowed & online) - isolated
    counts = Counter(gpu.numa_node for gpu in gpus)
    least = {node: max(1, thresholds.least_cpus_per_gpu * counts[node]) for node in nodes}
    short = {node: cpus for node, cpus in nodes.items() if len(cpus & usable) < least[node]}
    if not short or (len(short) < len(nodes) and _job_has_part_of_the_machine(host, len(gpus))):
        return  # a job with some of the GPUs rightly has some of the processors
    for node, cpus in short.items():
        yield finding(
            "CPU_AFFINITY",
            f"node{node}",
            f"has {counts[node]} GPUs; of its {len(cpus)} online processors jobs may use {len(cpus & usable)}",
            evidence={"node_cpus": format_cpu_list(cpus), **cpu_lists},
            fix=_FIX,
            commands=("taskset -pc $$", "cat /proc/cmdline", "nvidia-smi topo -m"),
        )


def _nodes(host: Host, gpus: tuple[PciGpu, ...], online: frozenset[int]) -> dict[int, frozenset[int]]:
    """Returns the online processors of each NUMA node that has a GPU. Raises NotApplicable where the firmware reports
    no node (-1) for any GPU and the machine has one, Unknown where it reports none and the machine has several."""
    known = sorted({gpu.numa_node for gpu in gpus})
    if known == [-1] and len(_list(host, f"{_NODE}/online")) <= 1:
        raise NotApplicable("the machine has one NUMA node")
    if -1 in known:
        raise Unknown("the firmware does not say which NUMA node the GPUs are on")
    return {node: _list(host, f"{_NODE}/node{node}/cpulist") & online for node in known}


def _list(host: Host, path: str) -> frozenset[int]:
    return parse_cpu_list(host.read(path), path)


def _job_has_part_of_the_machine(host: Host, gpus: int) -> bool:
    """Returns whether this process runs in a job with fewer than all GPUs, according to the variables of SLURM or the
    container runtime. False where that is not known."""
    environ = or_none(host.environ) or {}
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if "SLURM_JOB_ID" in environ and not count:
        return True  # a job without GPUs, or one of an older SLURM that does not set it
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    held = int(count) if count.isdecimal() else len(visible.split(",")) if visible else gpus
    return held < gpus


PROBE: Final = Probe("affinity", check, AffinityThresholds(), group=KERNEL)
