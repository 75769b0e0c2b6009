"""GPU_LOST: a GPU that NVML lists and that no longer answers, or that the driver asks to reset or recover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.readings import explain_nvml_error, query_gpus
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import LOST_ERRORS, Gpu
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_ACTIONS: Final = {  # NVML_GPU_RECOVERY_ACTION_*: the driver asks to ...
    1: ("reset the GPU", Severity.CRITICAL),
    2: ("reboot the node", Severity.CRITICAL),
    3: ("end the jobs that use peer-to-peer on it", Severity.WARNING),
    4: ("drain it and then reset it", Severity.WARNING),
    5: ("recover the IMEX domain", Severity.WARNING),
    6: ("reset its bus", Severity.CRITICAL),
    7: ("reboot the system", Severity.CRITICAL),
}
_FIX: Final = (
    "End what runs on it and reset it (`nvidia-smi --gpu-reset -i INDEX`; on NVSwitch systems all GPUs together). If "
    "it is still lost, power the node off and on; if it is lost again, replace it."
)


class LostThresholds(Thresholds, frozen=True):
    """Nothing to set."""


def check(host: Host, thresholds: LostThresholds) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    unreachable: list[str] = []
    for gpu in gpus:
        lost = {field: error for field, error in gpu.errors.items() if error in LOST_ERRORS}
        if lost:
            error = "RESET_REQUIRED" if "RESET_REQUIRED" in lost.values() else "GPU_IS_LOST"
            summary = "must be reset" if error == "RESET_REQUIRED" else "is lost: it no longer answers on the bus"
            yield _finding(gpu, summary, {"nvml_error": error, "calls": sorted(lost)})
        elif gpu.recovery_action:
            text, severity = _ACTIONS.get(gpu.recovery_action, ("recover it", Severity.CRITICAL))
            evidence = {"recovery_action": gpu.recovery_action}
            yield _finding(gpu, f"needs recovery: the driver asks to {text}", evidence, severity)
        elif "handle" in gpu.errors:
            unreachable.append(f"GPU {gpu.index}: {explain_nvml_error(gpu.errors['handle'])}")
    if unreachable:
        raise Unknown("; ".join(unreachable))


def _finding(gpu: Gpu, summary: str, evidence: Mapping[str, object], severity: Severity = Severity.CRITICAL) -> Finding:
    commands = (f"nvidia-smi -q -i {gpu.index}", "dmesg -T | grep NVRM")
    return finding("GPU_LOST", gpu.device, summary, evidence=evidence, fix=_FIX, commands=commands, severity=severity)


PROBE: Final = Probe("gpu_lost", check, LostThresholds(), group=GPU)
