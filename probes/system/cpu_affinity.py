"""CPU_AFFINITY: the processors that a job may use do not reach the GPUs' NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.gpu.model.pci_devices import PciGpu, read_pci_gpus
from laggard.probes.host.cpu_list import format_cpu_list, parse_cpu_list
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_CPU, _NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"
_STATUS = "/proc/self/status"
_FIX = (
    "Give the job the processors of its GPUs' NUMA nodes: remove isolcpus= from the kernel's command line and "
    "CPUAffinity= from the unit of slurmd or the container runtime, bring offline processors online, and bind tasks "
    "by GPU (`--gpu-bind=closest`)."
)


class AffinityThresholds(Thresholds, frozen=True):
    least_cpus_per_gpu: int = 1
    """Fewer usable processors on a GPU's node than this for each GPU there: a warning."""


def check(host: Host, thresholds: AffinityThresholds) -> Iterator[Finding | Fact]:
    cards = read_pci_gpus(host)
    if not cards:
        raise NotApplicable("no GPU in the PCI tree")
    online, allowed, isolated = _cpus(host, "online"), _allowed(host), _cpus(host, "isolated", "")
    offline = _cpus(host, "present") - online
    yield Fact("allowed", format_cpu_list(allowed))
    yield Fact("isolated", format_cpu_list(isolated))
    yield Fact("offline", format_cpu_list(offline))
    nodes = _nodes(host, cards, online)
    usable = (allowed & online) - isolated
    bare = {node: cpus for node, cpus in nodes.items() if _short(cpus & usable, cards, node, thresholds)}
    if not bare or (len(bare) < len(nodes) and _part_of_the_machine(host, len(cards))):
        return  # a job that was given some of the GPUs is right to have some of the processors
    for node, cpus in bare.items():
        yield finding(
            "CPU_AFFINITY",
            f"node{node}",
            f"has {_count(node, cards)} GPUs; of its {len(cpus)} online processors jobs may use {len(cpus & usable)}",
            evidence={
                "gpus": [card.address for card in cards if card.numa_node == node],
                "node_cpus": format_cpu_list(cpus),
                "allowed": format_cpu_list(allowed),
                "isolated": format_cpu_list(isolated),
                "offline": format_cpu_list(offline),
            },
            fix=_FIX,
            commands=("taskset -pc $$", "cat /proc/cmdline", "nvidia-smi topo -m"),
        )


def _short(usable: frozenset[int], cards: tuple[PciGpu, ...], node: int, thresholds: AffinityThresholds) -> bool:
    return len(usable) < max(1, thresholds.least_cpus_per_gpu * _count(node, cards))


def _count(node: int, cards: tuple[PciGpu, ...]) -> int:
    return sum(card.numa_node == node for card in cards)


def _nodes(host: Host, cards: tuple[PciGpu, ...], online: frozenset[int]) -> dict[int, frozenset[int]]:
    """The processors of each node that has a GPU. Where the firmware does not say (-1), there is one node."""
    known = sorted({card.numa_node for card in cards})
    if -1 in known:
        raise Unknown("the firmware does not say which NUMA node the GPUs are on") if len(known) > 1 else _flat(host)
    return {node: _list(host, f"{_NODE}/node{node}/cpulist") & online for node in known}


def _flat(host: Host) -> Exception:
    """All of one node: nothing can be far from anything."""
    nodes = _list(host, f"{_NODE}/online")
    if len(nodes) > 1:
        return Unknown("the firmware does not say which NUMA node the GPUs are on")
    return NotApplicable("the machine has one NUMA node")


def _allowed(host: Host) -> frozenset[int]:
    for line in host.read(_STATUS).splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cpu_list(line.partition(":")[2], _STATUS)
    raise Unknown(f"{_STATUS} has no line Cpus_allowed_list")


def _cpus(host: Host, name: str, default: str | None = None) -> frozenset[int]:
    try:
        return _list(host, f"{_CPU}/{name}")
    except NotFound:
        if default is None:
            raise
        return frozenset()


def _list(host: Host, path: str) -> frozenset[int]:
    return parse_cpu_list(host.read(path), path)


def _part_of_the_machine(host: Host, cards: int) -> bool:
    """A job that holds fewer than all GPUs, as SLURM or the container runtime says. Not known: not a part."""
    try:
        environ = host.environ()
    except Unknown:
        return False
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if "SLURM_JOB_ID" in environ and not count:
        return True  # a job without GPUs, or one of an older SLURM that does not say
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    held = int(count) if count.isdecimal() else len(visible.split(",")) if visible else cards
    return held < cards


PROBE: Final = Probe("affinity", check, AffinityThresholds())
