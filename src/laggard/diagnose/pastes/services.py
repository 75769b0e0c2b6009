"""The paste `systemctl status` of NVIDIA's own services: the fabric manager, the persistence daemon, DCGM and IMEX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.file_format import (
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    takes_all,
    without_colours,
)
from laggard.diagnose.rules import table
from laggard.model import Finding, Fix, Severity

_MAX_CHARACTERS: Final = 1 << 20
_MAX_LINES_BEFORE: Final = 10
_MAX_TOLD_LINES: Final = 5
_HEAD = re.compile(r"^\S? ?(nvidia-[\w-]+|nv-?fabricmanager|dcgm[\w-]*)\.service(?: - .*)?$", re.MULTILINE)
_ACTIVE = re.compile(r"^ +Active: (?P<state>\w+(?: \([^)]*\))?(?: \(Result: [\w-]+\))?)", re.MULTILINE)
_LOG = re.compile(r"^\w{3} [ \d]\d [\d:]{8} (?P<host>[\w.-]+) (?P<unit>[\w./@-]+)\[\d+\]: (?P<text>.*)$", re.MULTILINE)
_TELLING: Final = re.compile(r"fail|error|match|not |unable|cannot|denied|timed out|fatal|no such", re.IGNORECASE)
_BY_SYSTEMD: Final = "systemd"
_NOTHING_TO_DO: Final = re.compile(
    r"NOTHING_TO_DO|no NVSwitch|NVSwitch.{0,30}not (?:found|present)|ConditionPath", re.I
)


_DEVICES: Final = re.compile(r"Failed to query NVIDIA devices|/dev/nvidia|couldn't communicate|NVML")
_MISMATCH: Final = re.compile(r"version ([\d.]+\d).{0,20}(?:don't|does not|doesn't|do not) match.{0,40}?([\d.]+\d)")
NVIDIA_SERVICES: Final = table("services")


def recognise_service_status(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    head = _HEAD.search(text)
    return (
        head is not None
        and text.count("\n", 0, head.start()) < _MAX_LINES_BEFORE
        and bool(_ACTIVE.search(text, head.end()))
    )


def judge_service_status(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    services = [(head[1], text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
    states = {name: found["state"] for name, body in services if (found := _ACTIVE.search(body))}
    findings = (found for name, body in services for found in _judge(name, states.get(name, ""), body))
    return FileJudgement(tuple(findings), {"services": states})


def _judge(name: str, state: str, body: str) -> Iterator[Finding]:
    """Judges one service. It is well where it is active; one that is inactive because nobody enabled it may be."""
    if state.startswith(("active", "reloading")) or not state:
        return
    lines = list(_LOG.finditer(body))
    said = [line["text"] for line in lines if line["unit"] != _BY_SYSTEMD and _TELLING.search(line["text"])]
    if _NOTHING_TO_DO.search(body):
        return
    service = NVIDIA_SERVICES.first(name)
    assert service is not None  # the last one takes all
    code, severity, fix = service.code, service.severity, service.fix.text
    if code == "GPU_PERSISTENCE_OFF" and _DEVICES.search(body):
        code, severity = "GPU_DRIVER_FAILED", Severity.CRITICAL
        fix = "Load the driver (`modprobe nvidia`) and see why it did not start; then start nvidia-persistenced."
    elif state.startswith("inactive"):
        severity = Severity.WARNING
    mismatch = _MISMATCH.search(body)
    why = f": version {mismatch[1]} does not match the driver's {mismatch[2]}" if mismatch else ""
    reason = why or (f": {said[-1][:300]}" if said else "")
    commands = (f"journalctl -b -u {name}", f"systemctl restart {name}", "cat /proc/driver/nvidia/version")
    evidence = {"host": lines[0]["host"] if lines else None, "said": said[-_MAX_TOLD_LINES:] or None}
    told = f"does not run ({state}){reason}"
    row = service._replace(code=code, device=service.says or f"{name}.service", says=told, fix=Fix(fix, commands))
    yield row.found(evidence, severity)


SERVICE_STATUS = FileFormat("systemctl status", recognise_service_status, judge_service_status, takes=takes_all)
