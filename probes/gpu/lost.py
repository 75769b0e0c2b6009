"""GPU_LOST: a GPU that NVML lists and that no longer answers, or that the driver asks to reset or recover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.amd_gpus import POWER_OFF, read_amd_gpus
from laggard.probes.gpu.model.pci_devices import find_nvidia_devices, of_each_maker, unlisted_gpus, why_confined
from laggard.probes.gpu.model.readings import query_gpus
from laggard.probes.gpu.rules.xid_rules import explain_recovery_action
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import HANDLE_FAULTS, LOST_ERRORS, Gpu, explain_nvml_error
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, say

_BASIC: Final = (
    *("uuid", "name", "temperature_celsius", "sm_mhz", "power_limit_watts", "clocks_event_reasons", "persistence"),
    *("memory_used_ratio", "ecc_volatile"),
)
"""Readings that each GPU of a data centre answers, in MIG mode too. One that answers none of them is dead to every job,
though NVML has its handle; nvidia-smi shows ERR! for them."""
_MIN_FAILED: Final = 3


def _check_amd(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    """A GPU of AMD's that is gone is known by its configuration space, which the kernel reads without the driver."""
    gpus = read_amd_gpus(host)
    for gpu in gpus:
        if gpu.on_the_bus is False:
            evidence = {"driver": "amdgpu" if gpu.started else None}
            yield say("gpu", "lost_amd", gpu.device, evidence, fix=POWER_OFF, address=gpu.address)
    unread = [gpu.address for gpu in gpus if gpu.on_the_bus is None]
    if unread:
        raise Unknown(f"the configuration space of GPU {', '.join(unread)} cannot be read")


def _check_nvidia(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    for gpu in gpus:
        lost = {field: error for field, error in gpu.errors.items() if error in LOST_ERRORS}
        if lost:
            error = "RESET_REQUIRED" if "RESET_REQUIRED" in lost.values() else "GPU_IS_LOST"
            summary = "must be reset" if error == "RESET_REQUIRED" else "is lost: it no longer answers on the bus"
            yield _finding(host, gpu, summary, {"nvml_error": error, "calls": sorted(lost)})
        elif silent := _silent(gpu, gpus):
            summary = f"does not answer the driver: {len(silent)} of its basic readings are UNKNOWN"
            yield _finding(host, gpu, summary, {"nvml_error": "UNKNOWN", "calls": silent})
        elif gpu.recovery_action:
            advice, severity = explain_recovery_action(gpu.recovery_action)
            evidence = {"recovery_action": gpu.recovery_action}
            yield _finding(host, gpu, f"needs recovery: the driver asks to {advice}", evidence, severity)
    unreachable = [gpu for gpu in gpus if gpu.errors.get("handle", "GPU_IS_LOST") not in LOST_ERRORS]
    if unreachable:
        yield from _judge_unreachable(host, unreachable, _excuse(host, gpus))


def _silent(gpu: Gpu, gpus: Sequence[Gpu]) -> list[str]:
    """Returns the basic readings that failed as UNKNOWN, where these are most of them; of several GPUs those alone that
    a peer answers."""
    peers = [peer for peer in gpus if peer is not gpu]
    failed = [
        name
        for name in _BASIC
        if gpu.errors.get(name) == "UNKNOWN" and (not peers or any(getattr(peer, name) is not None for peer in peers))
    ]
    answered = sum(getattr(gpu, name) is not None for name in _BASIC if name not in ("uuid", "name"))
    return failed if len(failed) >= max(_MIN_FAILED, answered + 1) else []


def _excuse(host: Host, gpus: Sequence[Gpu]) -> str:
    """Returns why a missing handle may be no fault of the GPU; empty where it is one. A container that was given some
    GPUs gets the same errors for the others (NVIDIA/nvidia-container-toolkit#69)."""
    if all("handle" in gpu.errors for gpu in gpus):
        return "no GPU can be reached from here"
    if not unlisted_gpus(find_nvidia_devices(host), gpus):
        return "the PCI tree does not show it"
    return why_confined(host)


def _judge_unreachable(host: Host, gpus: Sequence[Gpu], excuse: str) -> Iterator[Finding]:
    """Judges GPUs that NVML counts, and gives no handle for."""
    unknown: list[str] = []
    for gpu in gpus:
        error = gpu.errors["handle"]
        if error not in HANDLE_FAULTS or excuse:
            reason = f", and {excuse}" if error in HANDLE_FAULTS else ""
            unknown.append(f"GPU {gpu.index}: {explain_nvml_error(error)}{reason}")
        else:
            summary = f"cannot be reached: it is on the bus, and NVML has no handle for it ({error})"
            yield _finding(host, gpu, summary, {"nvml_error": error, "calls": ["handle"]})
    if unknown:
        raise Unknown("; ".join(unknown))


def _finding(
    host: Host, gpu: Gpu, summary: str, evidence: Mapping[str, object], severity: Severity = Severity.CRITICAL
) -> Finding:
    """A GPU without a handle has no address: it is one of those that NVML does not list, and their only one mostly."""
    addresses = () if gpu.bus_id else unlisted_gpus(find_nvidia_devices(host), query_gpus(host))
    device = f"GPU {gpu.index} ({addresses[0]})" if len(addresses) == 1 else gpu.device
    evidence = {**evidence, **({"one_of": list(addresses)} if len(addresses) > 1 else {})}
    return say("gpu", "lost", device, evidence, severity, told=summary, index=gpu.index)


PROBE: Final = Probe("gpu_lost", of_each_maker(_check_nvidia, _check_amd), Thresholds(), group=GPU)
