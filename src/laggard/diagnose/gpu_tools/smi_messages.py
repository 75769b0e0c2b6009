"""The lines that nvidia-smi, modprobe and the driver's files print in place of a table, one row for each fault, as
findings. Pure.

Sources: NVML's error strings (nvmlErrorString) as nvidia-smi prints them, kmod's messages, NVIDIA's container toolkit
on cgroups and systemd (troubleshooting, "Containers losing access to GPUs").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.gpu_tools.smi_table import MISSING_FIX
from laggard.model import Finding
from laggard.probes.nvml.model import sysfs_bus_id
from laggard.probes.probe import finding

_RESTART: Final = (
    "Reboot the node, or unload the old modules (`rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia`) and "
)


class MessageRule(NamedTuple):
    pattern: str
    code: str
    device: str
    summary: str
    """May name the pattern's groups."""
    fix: str
    commands: tuple[str, ...] = ()


DRIVER: Final = "GPU_DRIVER_FAILED"
MESSAGE_RULES: Final = (
    MessageRule(r"Failed to initialize NVML: Driver/library version mismatch", DRIVER, "the NVIDIA driver",
        "has another version than its library: driver/library version mismatch",
        f"{_RESTART}load the new ones. The library was updated while the old kernel module was loaded.",
        ("cat /proc/driver/nvidia/version", "modinfo -F version nvidia", "dmesg | grep 'API mismatch'")),
    MessageRule(r"Failed to initialize NVML: Unknown Error", DRIVER, "NVML",
        "cannot reach the GPUs (Unknown Error): in a container, most often its cgroup lost access to them in a "
        "systemd reload", "If the host's nvidia-smi works, restart the container; for good, use cgroupfs or the CDI "
        "mode of NVIDIA's container toolkit, or give the /dev/nvidia* devices by name. If the host's fails too, see "
        "its kernel's log.", ("nvidia-smi -L", "ls -l /dev/nvidia*", "journalctl -b | grep -i 'systemd.*reload'")),
    MessageRule(
        r"Failed to initialize NVML: (?P<error>Insufficient Permissions|GPU access blocked by the operating system)",
        DRIVER, "NVML", "may not use the GPUs: {error}",
        "Let the user open /dev/nvidiactl and /dev/nvidia0..N: their mode, the container's devices, the cgroup.",
        ("ls -l /dev/nvidia*",)),
    MessageRule(
        r"Failed to initialize NVML: (?!Driver/lib|Unknown Err|Insufficient|GPU access)(?P<error>[A-Z][\w -]{3,60})",
        DRIVER, "NVML", "cannot start: {error}",
        "Read what the kernel's log says of the driver, then load it (`modprobe nvidia`) or reboot.",
        ("lsmod | grep nvidia", "dmesg -T | grep -E 'NVRM|nvidia'")),
    MessageRule(r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", DRIVER,
        "the NVIDIA driver", "does not run: no kernel module is loaded, or it failed to start",
        "Load it (`modprobe nvidia`). After an update of the kernel, build the module for it: install the headers of "
        "`uname -r` and run `dkms autoinstall`.",
        ("lsmod | grep nvidia", "dkms status", "modprobe nvidia", "dmesg -T | grep -E 'NVRM|nvidia'")),
    MessageRule(r"NVIDIA-SMI couldn't find libnvidia-ml\.so", DRIVER, "the NVIDIA driver",
        "has no library here: libnvidia-ml.so is not found", "Install the driver's libraries of the module's version. "
        "A container gets them from NVIDIA's container toolkit (`--gpus all`, or runtimeClassName nvidia).",
        ("ldconfig -p | grep nvidia-ml", "cat /proc/driver/nvidia/version")),
    MessageRule(r"modprobe: FATAL: Module (?P<module>nvidia[\w-]*) not found in directory (?P<folder>\S{1,200})",
        DRIVER, "the NVIDIA driver", "has no module {module} for the running kernel ({folder})",
        "Install the headers of the running kernel and build the module for it (`dkms autoinstall`), or boot the "
        "kernel that it was built for.", ("uname -r", "dkms status")),
    MessageRule(
        r"(?:modprobe|insmod): ERROR: could not insert (?:module )?'?(?P<module>nvidia[\w.-]*)'?: (?P<error>.{3,80})",
        DRIVER, "the NVIDIA driver", "cannot be loaded: {module}: {error}",
        "Read what the kernel's log says at that time: a GPU that does not answer, nouveau that holds it, or a module "
        "that is not signed where Secure Boot asks for it.",
        ("dmesg -T | tail -30", "lsmod | grep nouveau", "mokutil --sb-state")),
    MessageRule(r"Unable to determine the device handle for (?:GPU|gpu) ?(?:(?P<index>\d{1,3})(?=:))?:? ?"
        r"(?P<bus>[0-9A-Fa-f]{3,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)?:? ?(?P<error>[A-Z][^\n]{2,120})", "GPU_LOST", "",
        "cannot be reached: the driver has no handle for it ({error})",
        "The GPU most often fell off the bus: look for Xid 79 and RmInitAdapter in the kernel's log. Power the node "
        "off and on; if it is lost again, reseat or replace it. (A container that was given other GPUs gets this too.)",
        ("dmesg -T | grep -E 'NVRM|pcieport'", "lspci -d 10de:")),
    MessageRule(r"^No devices were found", "GPU_MISSING", "GPUs",
        "all missing: No devices were found, though the driver is loaded", MISSING_FIX,
        ("lspci -d 10de:", "dmesg -T | grep NVRM")),
)  # fmt: skip
"""The first of two that match the same words counts."""


_PATTERNS: Final = tuple((re.compile(rule.pattern, re.MULTILINE), rule) for rule in MESSAGE_RULES)
_CONTEXT: Final = (
    r"NVML library version: (?P<library>[\d.]+)",
    r"NVRM version: NVIDIA UNIX.*? (?P<module>\d{3}\.[\d.]+)",
    r"^(?P<kernel>\d+\.\d+\.\d+-\S+)$",
    r"^(?P<dkms>nvidia/[\d.]+, \S+, \w+: \w+)",
)
_CONTEXT_PATTERNS: Final = tuple(re.compile(pattern, re.MULTILINE) for pattern in _CONTEXT)
_ALL_PATTERNS: Final = (*(rule.pattern for rule in MESSAGE_RULES), *_CONTEXT)
LINE: Final = re.compile(
    "|".join(
        (
            *(f"(?:{re.sub('[?]P<[a-z]+>', '?:', pattern)})" for pattern in _ALL_PATTERNS),
            r"^GCC version:|^GPU \d+: .{1,120} \(UUID: |^\s+MIG .{1,60}\(UUID: |^NVIDIA UNIX"
            r"|Reboot the system to recover|Make sure that the latest NVIDIA driver"
            r"|Please also try adding directory that contains libnvidia-ml"
            r"|^WARNING: infoROM is corrupted|^nvidia(?:_\w+)? +\d+ +\d+|^Module +Size +Used by",
        )
    )
)
"""A line that this file knows, whether or not it says that something is wrong."""
_MAX_FINDINGS: Final = 64


def judge_messages(text: str) -> Iterator[Finding]:
    """Yields a finding for each fault that a line tells of, once for each GPU or the driver as a whole."""
    evidence = context(text)
    told: set[tuple[str, str]] = set()
    for pattern, rule in _PATTERNS:
        for match in pattern.finditer(text):
            groups = {name: value or "" for name, value in match.groupdict().items()}
            device = rule.device or _gpu(groups)
            key = (rule.code, device)
            if key in told or len(told) >= _MAX_FINDINGS:
                continue
            told.add(key)
            said = {"line": match[0][:200], **(evidence if rule.code == DRIVER else {})}
            summary = rule.summary.format(**groups)
            yield finding(rule.code, device, summary, evidence=said, fix=rule.fix, commands=rule.commands)


def context(text: str) -> dict[str, str]:
    """Versions that stand in the text: of the library, of the loaded module, of the kernel, of dkms' modules."""
    found = (pattern.search(text) for pattern in _CONTEXT_PATTERNS)
    return {
        f"{name}_version" if name != "dkms" else name: value
        for m in found
        if m
        for name, value in m.groupdict().items()
    }


def _gpu(groups: dict[str, str]) -> str:
    address = sysfs_bus_id(groups["bus"]) if groups["bus"] else ""
    if not groups["index"]:
        return f"GPU {address}".strip()
    return f"GPU {groups['index']}" + (f" ({address})" if address else "")
