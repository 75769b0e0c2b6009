"""The lines that nvidia-smi, modprobe and the driver's files print in place of a table, as findings: those of
rules/nvidia_smi.ini. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.rules import table
from laggard.model import Finding
from laggard.probes.nvml.model import sysfs_bus_id
from laggard.probes.probe import finding

DRIVER: Final = "GPU_DRIVER_FAILED"
_TABLE: Final = table("nvidia_smi")
MESSAGE_RULES: Final = tuple(row for row in _TABLE.rows if row.code)
"""The first of two that match the same words counts."""
_PATTERNS: Final = tuple(re.compile(rule.pattern, re.MULTILINE) for rule in MESSAGE_RULES)
_CONTEXT: Final = tuple(re.compile(row.pattern, re.MULTILINE) for row in _TABLE.of("context"))
LINE: Final = re.compile("|".join(f"(?:{re.sub('[?]P<[a-z]+>', '?:', row.pattern)})" for row in _TABLE.rows))
"""A line that this file knows, whether or not it says that something is wrong."""
_MAX_FINDINGS: Final = 64


def judge_messages(text: str) -> Iterator[Finding]:
    """Yields a finding for each fault that a line tells of, once for each GPU or the driver as a whole."""
    evidence = context(text)
    told: set[tuple[str, str]] = set()
    for pattern, rule in zip(_PATTERNS, MESSAGE_RULES, strict=True):
        for match in pattern.finditer(text):
            named, summary = rule.spoken(match.groupdict())
            device = named or _gpu(match["index"] or "", match["bus"] or "")
            key = (rule.code, device)
            if key in told or len(told) >= _MAX_FINDINGS:
                continue
            told.add(key)
            said = {"line": match[0][:200], **(evidence if rule.code == DRIVER else {})}
            yield finding(rule.code, device, summary, evidence=said, fix=rule.fix.text, commands=rule.fix.commands)


def context(text: str) -> dict[str, str]:
    """Versions that stand in the text: of the library, of the loaded module, of the kernel, of dkms' modules."""
    found = (match.groupdict() for pattern in _CONTEXT if (match := pattern.search(text)))
    return {name if name == "dkms" else f"{name}_version": value for each in found for name, value in each.items()}


def _gpu(index: str, bus: str) -> str:
    address = sysfs_bus_id(bus) if bus else ""
    return f"GPU {index} ({address})" if index and address else f"GPU {index or address}".strip()
