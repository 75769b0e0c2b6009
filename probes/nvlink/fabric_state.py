"""FABRIC_NOT_READY: a GPU whose registration with the NVLink fabric is missing, incomplete or unhealthy. CUDA does not
start on a GPU that is not registered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from laggard.kit.majority import grouped
from laggard.kit.words import lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable
from laggard.probes.gpu.model.readings import has_nvlinks, query_non_mig_gpus, read_field
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import has_just_booted, is_virtual_machine
from laggard.probes.nvml.model import UNSUPPORTED, Gpu, GpuFabricInfo, error_name, explain_nvml_error
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, say
from laggard.probes.tables import meanings

_CONNECTING: Final = (1, 2)  # NVML_GPU_FABRIC_STATE_NOT_STARTED and _IN_PROGRESS
_COMPLETED: Final = 3
_ALWAYS_IN_ONE: Final = lazy_pattern(r"\bGB[23]00\b|\bB[23]00\b|\bH[128]00\b(?! NVL| PCIe)|\bH20\b")
"""GPUs whose boards have NVSwitches. An HGX H100 of four and a GB200 NVL4 have none: they connect their GPUs directly,
and so have NVLinks up."""
_BOARD_GPUS: Final = 4
CONNECTING_SECONDS: Final = 600.0
"""The time after boot for which a GPU may be without its connection: the fabric manager starts, trains all links and,
on NVLink 5, waits for the subnet manager."""

_MANAGER_FILE: Final = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
_SHARED_MODE: Final = lazy_pattern(r"^\s*FABRIC_MODE\s*=\s*[12]\s*$", re.MULTILINE)


class FabricThresholds(Thresholds, frozen=True):
    partitions: bool | None = None
    """The fabric manager connects GPUs only when a partition of them is activated, for a virtual machine or a tenant
    (FABRIC_MODE 1 and 2). None: as its file says."""


def check(host: Host, thresholds: FabricThresholds) -> Iterator[Finding | Fact]:
    # A board without NVLinks is in no fabric, whether or not the library knows the call (driver 525 and newer).
    listed = query_non_mig_gpus(host)
    gpus = [gpu for gpu in listed if gpu.fabric is not None or has_nvlinks(gpu)]
    reading = read_field(gpus, "fabric", "registration with a fabric")
    registered = [(gpu, fabric) for gpu, fabric in reading.values if fabric.state]
    domains = sorted({fabric.cluster_uuid for _, fabric in registered if fabric.cluster_uuid})
    if domains:
        yield Fact("nvlink_domains_across_nodes", domains)
        yield Fact("imex", "recognised, not judged")
    yield from outside(listed, is_virtual_machine(host))
    yield from _apart([(gpu, fabric) for gpu, fabric in registered if fabric.state == _COMPLETED])
    why_waiting = _why_waiting(host, thresholds) if any(fabric.state in _CONNECTING for _, fabric in registered) else ""
    for gpu, fabric in registered:
        for summary, severity in judge_fabric(fabric):
            waits = why_waiting if fabric.state in _CONNECTING else ""
            yield _finding(gpu, fabric, f"{summary}{waits}", Severity.WARNING if waits else severity)
    reading.raise_if_incomplete()
    if not registered:
        raise NotApplicable("the GPUs know no NVLink fabric")


def outside(gpus: Sequence[Gpu], guest: bool | None) -> Iterator[Finding]:
    """A whole node out of its fabric: its GPUs always have one, and none of them has it or an NVLink. A guest may have
    a part of a board, whose host keeps the rest, and of GB200 the whole tray. Where the links are not told, as those of
    a virtual GPU, that is a warning."""
    without = [gpu for gpu in gpus if not (gpu.fabric.state if gpu.fabric else gpu.errors.get("fabric") != UNSUPPORTED)]
    boards = [found[0] for gpu in without if (found := _ALWAYS_IN_ONE.search(gpu.name or ""))]
    if len(boards) < len(gpus) or len(gpus) < _BOARD_GPUS or any(any(gpu.links or ()) for gpu in gpus):
        return
    down, untold = all(gpu.links for gpu in gpus), not any("links" in gpu.errors for gpu in gpus)
    if (down or untold) and (not guest or all(board.startswith("GB") for board in boards)):
        severity = Severity.CRITICAL if down else Severity.WARNING
        for gpu in gpus:
            yield _finding(gpu, GpuFabricInfo(state=0), "is in no fabric, which its board always has", severity)


def _apart(registered: Sequence[tuple[Gpu, GpuFabricInfo]]) -> Iterator[Finding]:
    """GPUs of one node in several cliques or clusters: NCCL takes no NVLink between them, and Kubernetes' driver for
    compute domains refuses such a node (k8s-dra-driver-gpu, nvlib.go). Of two groups of one size neither is odd."""
    groups = grouped(registered, lambda each: (each[1].cluster_uuid, each[1].clique))
    largest, *odd = sorted(groups.values(), key=len, reverse=True) or [[]]
    clear = not odd or len(largest) > len(odd[0])
    for gpu, fabric in chain(*odd if clear else (largest, *odd)):
        summary = f"is in another clique or cluster than its peers: {fabric.cluster_uuid or 'none'} {fabric.clique}"
        yield _finding(gpu, fabric, summary, Severity.CRITICAL if clear else Severity.WARNING)


def _why_waiting(host: Host, thresholds: FabricThresholds) -> str:
    """Returns why a GPU may be without its connection and healthy; empty where nothing explains it."""
    if has_just_booted(host, CONNECTING_SECONDS):
        return ", as it may be soon after boot"
    partitions = thresholds.partitions
    if partitions is None:
        partitions = bool(_SHARED_MODE.search(host.text(_MANAGER_FILE)))
    return ", as it may be until its partition is activated" if partitions else ""


def judge_fabric(fabric: GpuFabricInfo) -> Iterator[tuple[str, Severity]]:
    """Yields what is wrong with a registration. Status and health mean something once it is completed. The summary
    counts where nothing else says more."""
    if fabric.state != _COMPLETED:
        unknown = f"is in state {fabric.state}", Severity.CRITICAL
        yield meanings("nvml", "fabric_state").get(str(fabric.state), unknown)
        return
    if fabric.status:
        yield f"could not be connected: {explain_nvml_error(error_name(fabric.status))}", Severity.CRITICAL
    details = list(_judge_mask(fabric.health_mask or 0))
    yield from details
    summary = meanings("nvml", "fabric_summary").get(str(fabric.health_summary))
    if summary and not details and not fabric.status:
        yield summary


def _judge_mask(mask: int) -> Iterator[tuple[str, Severity]]:
    for bits, meaning in meanings("nvml", "fabric_bits").items():
        shift, value = map(int, bits.split())
        if mask >> shift & 0b11 == value:
            yield meaning
    configuration = mask >> 8 & 0xF
    if configuration > 1:
        unknown = f"is wrongly configured ({configuration})", Severity.CRITICAL
        yield meanings("nvml", "fabric_configuration").get(str(configuration), unknown)


def _finding(gpu: Gpu, fabric: GpuFabricInfo, summary: str, severity: Severity) -> Finding:
    evidence = {
        "state": fabric.state,
        **({"status": error_name(fabric.status)} if fabric.status else {}),
        "health_mask": None if fabric.health_mask is None else f"{fabric.health_mask:#x}",
        "health_summary": fabric.health_summary,
    }
    return say("gpu", "fabric", gpu.device, evidence, severity, told=summary, index=gpu.index)


PROBE: Final = Probe("fabric", check, FabricThresholds(), group=GPU)
