"""FABRIC_MANAGER_DOWN: nv-fabricmanager, the daemon without which NVSwitches connect nothing, does not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.kit.words import lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown, or_none
from laggard.probes.gpu.model.pci_devices import NO_TREE, find_nvidia_devices
from laggard.probes.gpu.model.readings import known_gpus, query_nvml
from laggard.probes.gpu.model.services import is_service
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import sees_all_processes
from laggard.probes.host.virtualization import has_just_booted, is_virtual_machine
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, say

_COMM: Final = "nv-fabricmanage"  # nv-fabricmanager, cut at 15 characters
_PID_FILES: Final = (
    "/run/nvidia-fabricmanager/nv-fabricmanager.pid",
    "/var/run/nvidia-fabricmanager/nv-fabricmanager.pid",
)
_HGX_NAMES: Final = lazy_pattern(r"\bB[23]00\b")
STARTING_SECONDS: Final = 300.0
"""The time after boot within which the manager may not run yet: its service waits for the driver."""

_COMPLETED: Final = 3  # NVML_GPU_FABRIC_STATE_COMPLETED


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    # Without the driver it cannot run, and another probe tells of the driver.
    unloaded = query_nvml(host).error == "DRIVER_NOT_LOADED"
    nvswitches = find_nvidia_devices(host).nvswitches
    hidden = not nvswitches and _has_hidden_switches(host)
    if not nvswitches and not hidden:
        if not find_nvidia_devices(host).shown:
            raise Unknown(NO_TREE)
        raise NotApplicable("no NVSwitch in the PCI tree")
    pid = _find_process(host)
    if pid:
        yield Fact("process", pid)
        return
    registered, starting = _registered(host), has_just_booted(host, STARTING_SECONDS)
    if not sees_all_processes(host):
        raise Unknown(
            "the node's processes are not visible from here (another PID namespace), nor is its fabric manager"
        )
    board = "GPUs of an HGX board with NVSwitches" if hidden else f"{len(nvswitches)} NVSwitches"
    evidence = {"nvswitches": list(nvswitches), "gpus_registered_with_the_fabric": registered}
    severity = Severity.WARNING if registered or hidden or starting or unloaded else Severity.CRITICAL
    told = board + ", whose GPUs it had connected" * registered
    yield say("gpu", "manager", "nv-fabricmanager", evidence, severity, told=told)


def _has_hidden_switches(host: Host) -> bool:
    """Returns whether the GPUs are those of an HGX B200 or B300, whose NVSwitches are no PCI devices of the host and
    want a fabric manager all the same. The switches of GB200 and GB300 are in trays of their own, with theirs. That is
    known by the GPUs' names alone: a warning."""
    gpus = known_gpus(host)
    named = all(_HGX_NAMES.search(gpu.name or "") and gpu.fabric is not None and gpu.fabric.state for gpu in gpus)
    return named and len(gpus) > 1 and is_virtual_machine(host) is False


def _find_process(host: Host) -> int:
    """Returns the fabric manager's process id, 0 where it does not run. Its pid file often saves the search."""
    named = (*map(host.read_if_present, _PID_FILES), *host.entries("/proc"))
    return next((int(pid) for pid in named if pid.isdecimal() and _is_manager(host, pid)), 0)


def _is_manager(host: Host, pid: str) -> bool:
    """Returns whether the process has the manager's name, root or systemd started it, and it executes no other program,
    as far as that can be seen: the name of a program of root's that users may start is theirs to choose."""
    if host.text(f"/proc/{pid}/comm") != _COMM or not is_service(host.text, int(pid), (_COMM,)):
        return False
    program = or_none(host.read_link, f"/proc/{pid}/exe")
    return program is None or program.rpartition("/")[2].startswith(_COMM)


def _registered(host: Host) -> bool:
    """Returns whether all GPUs are registered with the fabric: then running jobs go on, but a later fault is not
    repaired. An A100 does not report its registration."""
    fabrics = [gpu.fabric for gpu in known_gpus(host)]
    return bool(fabrics) and all(it is not None and it.state == _COMPLETED and not it.status for it in fabrics)


PROBE: Final = Probe("fabric_manager", check, Thresholds(), group=GPU)
