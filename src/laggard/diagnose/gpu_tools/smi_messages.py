"""Findings from what nvidia-smi, modprobe and the driver's files print in place of a table. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.gpu_tools.smi_message_rules import DRIVER, MESSAGE_RULES
from laggard.model import Finding
from laggard.probes.nvml.model import sysfs_bus_id
from laggard.probes.probe import finding

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
