"""GPU_MISSING: fewer GPUs answer than the machine has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.kit.majority import grouped, majority
from laggard.model import Severity
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.amd_gpus import AmdGpu, driver_is_loaded, read_amd_gpus
from laggard.probes.gpu.model.pci_devices import (
    NO_TREE,
    NvidiaDevices,
    container_of,
    find_nvidia_devices,
    unlisted_gpus,
    why_confined,
)
from laggard.probes.gpu.model.readings import query_nvml
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import declared_gpus
from laggard.probes.nvml.model import Nvml, explain_nvml_error
from laggard.probes.probe import GPU, Count, Fact, Probe, Thresholds, facts
from laggard.probes.rows import Item, Row, Told, judge_items

_MIN_PEERS: Final = 3


class CountThresholds(Thresholds, frozen=True):
    expected: Count | None = None
    """The number of GPUs of this kind of node: whole ones, unless all of them are divided by MIG. Not set: as many as
    the PCI tree shows, and at least `least`."""

    least: Count = 0
    """The least number of GPUs that it has, those lent to virtual machines among them: for nodes that are known to have
    some, and not how many. 0: a machine without GPUs is none of this probe's."""


def check(host: Host, thresholds: CountThresholds) -> Told:
    """Compares NVML's list, and of AMD's GPUs those that the driver has, with the profile's number, else with the PCI
    tree. The profile's number also counts on a machine whose PCI tree shows no GPU at all."""
    pci = find_nvidia_devices(host)
    shown = max(len(pci.gpus), thresholds.least - len(pci.passed_through))
    least = max(shown, 0 if pci.amd_gpus else declared_gpus(host) - len(pci.passed_through))
    expected = least if thresholds.expected is None else thresholds.expected
    if pci.amd_gpus:
        yield from _check_amd(host, pci, _expected_of_amd(pci, thresholds))
        if not pci.gpus:
            return
    if not (pci.shown or expected):
        raise Unknown(f"{NO_TREE}, so nothing says how many GPUs it has: set gpu_count.expected")
    told = pci.shown and (thresholds.expected is not None or (expected > 0 and not pci.unreadable))
    named = thresholds.expected is not None
    if told and not pci.gpus:
        if expected:
            yield from judge_items(host, _NONE, [Item("GPUs", 0, expected)], {"GPUs": expected} if named else {})
        return
    nvml = query_nvml(host)
    if nvml.error or nvml.hung:
        problem = explain_nvml_error(nvml.error) if nvml.error else "hangs"
        raise Unknown(f"{len(pci.gpus)} GPUs in the PCI tree, and NVML: {problem}")
    yield from _facts(pci, nvml)
    listed, divided = len(nvml.gpus), [gpu.bus_id or str(gpu.index) for gpu in nvml.gpus if gpu.mig]
    expected = shown if divided and not named else expected  # SLURM counts the parts
    if listed < expected:
        confined = why_confined(host)
        if confined and not named:
            raise Unknown(f"NVML lists {listed} of {expected} GPUs, and {confined}: set gpu_count.expected")
        unlisted = unlisted_gpus(pci, nvml.gpus)
        displays = not named and len(unlisted) == expected - listed and set(unlisted) <= {*pci.displays}
        row, severity = (_DISPLAYS, Severity.WARNING) if displays else (_LISTED, Severity.CRITICAL)
        item = Item(_name(unlisted), listed, expected, severity)
        yield from judge_items(host, row, [item], {item.name: expected} if named else {})
    elif named and 0 < listed - len(divided) < expected:
        item = Item(_name(divided), listed - len(divided))
        yield from judge_items(host, _WHOLE, [item], {item.name: expected})
    yield from judge_items(host, _DIVIDED, _without_a_part(host, nvml))
    without_handle = [gpu.index for gpu in nvml.gpus if "handle" in gpu.errors]
    if without_handle:
        raise Unknown(f"NVML lists GPU {', '.join(map(str, without_handle))}, and gives no access: see gpu_lost")


def _without_a_part(host: Host, nvml: Nvml) -> Iterator[Item]:
    """The GPUs in MIG mode that nobody has divided: SLURM gives a job nothing of them. Kubernetes may divide them when
    a pod asks."""
    severity = Severity.WARNING if container_of(host) else Severity.CRITICAL
    return (Item(gpu.device, 0, 1, severity) for gpu in nvml.gpus if gpu.mig and gpu.mig_devices == 0)


def _check_amd(host: Host, pci: NvidiaDevices, expected: int) -> Told:
    """Compares the GPUs that amdgpu has started with the number that it should have."""
    if not driver_is_loaded(host):
        raise Unknown(f"{len(pci.amd_gpus)} AMD GPUs in the PCI tree, and the driver amdgpu is not loaded")
    gpus = read_amd_gpus(host)
    yield Fact("amd_gpus", len(gpus))
    yield Fact("amd_models", sorted({gpu.model or gpu.device_id for gpu in gpus if gpu.started}))
    yield Fact("amd_memory_bytes", {gpu.device: gpu.vram_total_bytes for gpu in gpus if gpu.vram_total_bytes})
    uuids = {gpu.torch_uuid: {"bus_id": gpu.address} for gpu in gpus if gpu.torch_uuid}
    yield Fact("uuids", uuids)  # how a rank names the one that it trains on
    if not any(gpu.partition not in ("", "SPX") for gpu in gpus):
        expected = max(expected, declared_gpus(host))
    others = [gpu.address for gpu in gpus if not gpu.started]
    yield from judge_items(host, _STARTED, [Item(_name(others), len(gpus) - len(others), expected)])
    yield from judge_items(host, _PARTITIONED, _divided_otherwise(gpus))


def _divided_otherwise(gpus: Sequence[AmdGpu]) -> Iterator[Item]:
    """The GPUs that are divided in another way than most of their model: ranks get unequal ones, and more of them than
    the node has. One was left so; several may be a site's design."""
    for peers in grouped(gpus, lambda gpu: gpu.device_id).values():
        usual = majority((gpu.partition for gpu in peers if gpu.partition), _MIN_PEERS)
        others = [gpu for gpu in peers if usual and gpu.partition not in ("", usual)]
        severity = Severity.CRITICAL if len(others) == 1 else Severity.WARNING
        for gpu in others:
            says = f"is partitioned as {gpu.partition}, and its peers as {usual}"
            yield Item(gpu.device, 0, 1, severity, says=says)


def _expected_of_amd(pci: NvidiaDevices, thresholds: CountThresholds) -> int:
    """The number of AMD GPUs that the driver should have. A profile's number is of these where there are no others."""
    if pci.gpus:
        return len(pci.amd_gpus)
    return max(len(pci.amd_gpus), thresholds.least) if thresholds.expected is None else thresholds.expected


def _name(addresses: Sequence[str]) -> str:
    """The device of a finding: the GPUs that are missing, as far as they are known."""
    return f"GPU {', '.join(addresses)}" if addresses else "GPUs"


_LISTED: Final = Row("gpus", table="gpu", starting_seconds=0.0)
_NONE, _DISPLAYS, _WHOLE, _STARTED = (
    _LISTED._replace(section=name) for name in ("gpus_none", "gpus_displays", "gpus_whole", "gpus_started")
)
_DIVIDED: Final = Row("divided", table="gpu")
_PARTITIONED: Final = Row("partitions", table="gpu")


def _facts(pci: NvidiaDevices, nvml: Nvml) -> Iterator[Fact]:
    """Reports what else is there: it is recognised and not judged."""
    yield Fact("models", sorted({gpu.name for gpu in nvml.gpus if gpu.name}))
    yield Fact("nvswitches", len(pci.nvswitches))
    minors = {str(gpu.minor): gpu.bus_id for gpu in nvml.gpus if gpu.minor is not None and gpu.bus_id}
    yield Fact("minors", minors)  # how SLURM counts GPUs
    uuids = {gpu.uuid: {"index": gpu.index, "bus_id": gpu.bus_id} for gpu in nvml.gpus if gpu.uuid}
    yield Fact("uuids", uuids)  # how a rank names the one that it trains on
    yield Fact("whole", sum(not gpu.mig for gpu in nvml.gpus))
    divided = [gpu.index for gpu in nvml.gpus if gpu.mig]
    yield from facts(mig=divided, lent_to_virtual_machines=list(pci.passed_through))


PROBE: Final = Probe("gpu_count", check, CountThresholds(), group=GPU)
