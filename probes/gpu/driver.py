"""GPU_DRIVER_HUNG: a call into the driver that does not return.

The runner finds the hang and ends the process: see host/watchdog.py. A start without persistence mode takes seconds for
each GPU and is no hang; each announced call has its own time limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.readings import explain_nvml_error, query_nvml
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Hang
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX: Final = (
    "Drain the node and look for the cause in the kernel's log (Xid 119 or 79, `blocked for more than 120 seconds`). A "
    "process stuck in state D ends only when its call returns: reset the GPU if the driver still lets you, else reboot."
)


class DriverThresholds(Thresholds, frozen=True):
    """Nothing to set: the time limit of a call stands where the call is made."""


def check(host: Host, thresholds: DriverThresholds) -> Iterator[Finding | Fact]:
    nvml = query_nvml(host)
    if nvml.hung:
        yield driver_hung(nvml.hung)
        raise Unknown(f"{nvml.hung.call} gave no answer in {nvml.hung.seconds} s")
    if nvml.error:
        raise Unknown(f"NVML: {explain_nvml_error(nvml.error)}")
    yield Fact("driver_version", nvml.driver_version)
    yield Fact("gpus", len(nvml.gpus))


def driver_hung(hang: Hang) -> Finding:
    """Makes the finding of a call into the driver that exceeded its time limit; the runner calls it too."""
    return finding(
        "GPU_DRIVER_HUNG",
        "nvidia driver",
        f"{hang.call} gave no answer in {hang.seconds} s",
        evidence={
            "call": hang.call,
            "seconds": hang.seconds,
            "usual_at_most_seconds": hang.limit_seconds,
            "process": hang.pid,
            "process_state": hang.state or "unreadable",
            "waits_in": hang.wchan or "unreadable",
            "kernel_stack": list(hang.stack),
        },
        fix=_FIX,
        commands=(
            f"cat /proc/{hang.pid}/stack",
            "dmesg -T | grep -E 'NVRM|blocked for more'",
            "nvidia-smi -r -i INDEX",
        ),
    )


PROBE: Final = Probe("gpu_driver", check, DriverThresholds(), group=GPU, on_hang=driver_hung)
