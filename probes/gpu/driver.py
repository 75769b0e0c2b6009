"""GPU_DRIVER_HUNG: a call into the driver that does not return.

The runner finds the hang and ends the process: see host/watchdog.py. A start without persistence mode takes seconds for
each GPU, in the call that asks for its handle, and is no hang; each announced call has its own time limit. A reading
that takes three seconds is a warning, where the deadline leaves no time to wait for its limit: the driver's locks are
held for seconds while a GPU is reset, MIG is changed, or a program pins much memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.amd_gpus import DRIVER_CALL
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.gpu.model.readings import explain_nvml_error, query_nvml
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import CALL_LIMIT_SECONDS, Hang
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, finding

_FIX: Final = (
    "Drain the node and look for the cause in the kernel's log (Xid 119 or 79, `blocked for more than 120 seconds`). A "
    "process stuck in state D ends only when its call returns: reset the GPU if the driver still lets you, else reboot."
)


SLOW_CALL_SECONDS: Final = 3.0
_ROUNDING_SECONDS: Final = 0.05
_MAX_XIDS: Final = 5


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    nvml = query_nvml(host)
    if nvml.hung:
        yield from filter(None, [driver_hung(nvml.hung, _log(host))])
        raise Unknown(f"{nvml.hung.call} gave no answer in {nvml.hung.seconds} s")
    if nvml.error:
        raise Unknown(f"NVML: {explain_nvml_error(nvml.error)}")
    yield Fact("driver_version", nvml.driver_version)
    yield Fact("gpus", len(nvml.gpus))


def driver_hung(hang: Hang, log: str | None = None) -> Finding | None:
    """Makes the finding of a call into the driver that exceeded its time limit, or that is slow; None where it may take
    that long. The runner calls it too. `log`: the kernel's, by default of this machine."""
    exceeded = hang.seconds + _ROUNDING_SECONDS >= hang.limit_seconds
    if not exceeded and (hang.seconds < SLOW_CALL_SECONDS or hang.limit_seconds > CALL_LIMIT_SECONDS):
        return None
    of_amd = hang.call.startswith(DRIVER_CALL)
    return finding(
        "GPU_DRIVER_HUNG",
        "amdgpu driver" if of_amd else "nvidia driver",
        f"{hang.call} gave no answer in {hang.seconds} s",
        evidence={
            "call": hang.call,
            "seconds": hang.seconds,
            "usual_at_most_seconds": hang.limit_seconds,
            "process": hang.pid,
            "process_state": hang.state or "unreadable",
            "waits_in": hang.wchan or "unreadable",
            "kernel_stack": list(hang.stack),
            "xids_logged": _last_xids(_log(Host()) if log is None else log),
        },
        fix=_FIX,
        commands=(
            f"cat /proc/{hang.pid}/stack",
            f"dmesg -T | grep -E '{'amdgpu' if of_amd else 'NVRM'}|blocked for more'",
            "amd-smi reset -G -g INDEX" if of_amd else "nvidia-smi -r -i INDEX",
        ),
        severity=Severity.CRITICAL if exceeded else Severity.WARNING,
    )


def _last_xids(log: str) -> list[str]:
    lines = [line for line in find_xids(log) if not line.closed_by]
    return [f"{line.device}: {line.source} {line.code}, {line.text[:80]}" for line in lines[-_MAX_XIDS:]]


def _log(host: Host) -> str:
    try:
        return host.kernel_log()
    except Unknown:
        return ""


PROBE: Final = Probe("gpu_driver", check, Thresholds(), group=GPU, on_hang=driver_hung)
