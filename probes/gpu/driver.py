"""GPU_DRIVER_HUNG, GPU_DRIVER_FAILED and MODULE_MISSING: a call into the driver that does not return; a driver that has
not started, or that its library does not fit; and what CUDA needs beside it.

The runner finds the hang and ends the process: see host/watchdog.py. A start without persistence mode takes seconds for
each GPU, in the call that asks for its handle, and is no hang; each announced call has its own time limit. A reading
that takes three seconds is a warning, where the deadline leaves no time to wait for its limit: the driver's locks are
held for seconds while a GPU is reset, MIG is changed, or a program pins much memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown, or_none
from laggard.probes.gpu.model.amd_gpus import DRIVER_CALL, driver_is_loaded
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.gpu.model.pci_devices import container_of, driver_of, exists, find_nvidia_devices
from laggard.probes.gpu.model.readings import query_nvml
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import loaded_modules, read_uptime
from laggard.probes.nvml.model import CALL_LIMIT_SECONDS, Hang, explain_nvml_error
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, say
from laggard.probes.rows import FILES, MODULES, Item, Row, Told, judge, judge_items

SLOW_CALL_SECONDS: Final = 3.0
_ROUNDING_SECONDS: Final = 0.05
_MAX_XIDS: Final = 5


STARTING_SECONDS: Final = 1800.0
"""The time after boot, or after the driver was last seen to work, in which it may be away: an upgrade builds it anew
(DKMS takes minutes for each kernel), and unloads it."""


def check(host: Host, thresholds: Thresholds) -> Told:
    pci = or_none(find_nvidia_devices, host)
    if pci is not None and pci.amd_gpus and not driver_is_loaded(host):
        yield from _failed(host, "amdgpu driver", f"is not loaded for {len(pci.amd_gpus)} GPUs on the PCI bus")
    nvml = query_nvml(host)
    yield SaveCounters({"answers": int(not (nvml.error or nvml.hung))})
    if nvml.error == "LIB_RM_VERSION_MISMATCH":
        yield from _failed(host, "nvidia driver", "is loaded, and its library is of another version")
    gpus = pci.gpus if pci is not None and nvml.error == "DRIVER_NOT_LOADED" else ()
    if gpus and all(driver_of(host, name) != "nvidia" for name in gpus):
        yield from _failed(host, "nvidia driver", f"is not loaded for {len(gpus)} GPUs on the PCI bus")
    if nvml.hung:
        yield from filter(None, [driver_hung(nvml.hung, or_none(host.kernel_log) or "")])
        raise Unknown(f"{nvml.hung.call} gave no answer in {nvml.hung.seconds} s")
    if nvml.error:
        raise Unknown(f"NVML: {explain_nvml_error(nvml.error)}")
    if nvml.confidential_ready is False:
        yield say("gpu", "not_ready", "GPUs", {"confidential_computing": "not ready"})
    yield Fact("driver_version", nvml.driver_version)
    yield Fact("gpus", len(nvml.gpus))
    yield from judge(host, MODULES._replace(read=_cuda_modules))
    yield from judge(host, FILES._replace(read=_cuda_files))


def _failed(host: Host, device: str, summary: str) -> Told:
    """What keeps every job from its GPUs, unless it may pass, or is this container's alone."""
    worked = [shot.uptime for shot in host.counter_history.snapshots if shot.counters.get("answers")]
    seconds = (or_none(read_uptime, host) or 0.0) - max(worked, default=0.0)
    if seconds >= STARTING_SECONDS and not container_of(host):
        yield from judge_items(host, Row("driver", table="gpu", named={"told": summary}), [Item(device, 0, 1)])


# What CUDA needs and NVML does not.


def _uvm_severity(host: Host) -> Severity:
    """How bad it is that nvidia_uvm is not there yet: a program of root's loads it for the first that uses CUDA
    (nvidia-modprobe -u), and a container's runtime for its containers."""
    return Severity.WARNING if container_of(host) or exists(host, "/usr/bin/nvidia-modprobe") else Severity.CRITICAL


def _cuda_modules(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """Without nvidia_uvm no program can start CUDA. A host that lends parts of its GPUs (vGPU) starts none. Raises
    NotFound where the kernel's own list is not shown."""
    host.read("/proc/modules")
    loaded = loaded_modules(host)
    if "nvidia" in loaded and not any("vgpu" in name for name in loaded):
        yield Item("nvidia_uvm", int("nvidia_uvm" in loaded), 1, _uvm_severity(host))


def _cuda_files(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The device files of the GPUs of the usual model: beside them may be a card for a display. NVML has had them made
    where that is possible, before they are looked for (nvidia-modprobe -c)."""
    files, gpus = host.names("/dev"), query_nvml(host).gpus
    if "nvidiactl" in files and not container_of(host):
        usual = majority(gpu.name for gpu in gpus)
        for gpu in gpus:
            if gpu.minor is not None and usual in (None, gpu.name):
                yield Item(f"/dev/nvidia{gpu.minor}", int(f"nvidia{gpu.minor}" in files), 1)
        if "nvidia_uvm" in loaded_modules(host):
            yield Item("/dev/nvidia-uvm", int("nvidia-uvm" in files), 1, _uvm_severity(host))


def driver_hung(hang: Hang, log: str | None = None) -> Finding | None:
    """Makes the finding of a call into the driver that exceeded its time limit, or that is slow; None where it may take
    that long. The runner calls it too. `log`: the kernel's, by default of this machine."""
    exceeded = hang.seconds + _ROUNDING_SECONDS >= hang.limit_seconds
    if not exceeded and (hang.seconds < SLOW_CALL_SECONDS or hang.limit_seconds > CALL_LIMIT_SECONDS):
        return None
    of_amd = hang.call.startswith(DRIVER_CALL)
    evidence = {
        "call": hang.call,
        "seconds": hang.seconds,
        "usual_at_most_seconds": hang.limit_seconds,
        "process": hang.pid,
        "process_state": hang.state or "unreadable",
        "waits_in": hang.wchan or "unreadable",
        "kernel_stack": list(hang.stack),
        "xids_logged": _last_xids((or_none(Host().kernel_log) or "") if log is None else log),
    }
    severity = Severity.CRITICAL if exceeded else Severity.WARNING
    driver, module = ("amdgpu driver", "amdgpu") if of_amd else ("nvidia driver", "NVRM")
    reset = "amd-smi reset -G -g INDEX" if of_amd else "nvidia-smi -r -i INDEX"
    told = {"call": hang.call, "seconds": hang.seconds, "pid": hang.pid}
    return say("gpu", "hung", driver, evidence, severity, module=module, reset=reset, **told)


def _last_xids(log: str) -> list[str]:
    lines = [line for line in find_xids(log) if not line.closed_by]
    return [f"{line.device}: {line.source} {line.code}, {line.text[:80]}" for line in lines[-_MAX_XIDS:]]


PROBE: Final = Probe("gpu_driver", check, Thresholds(), group=GPU, on_hang=driver_hung)
