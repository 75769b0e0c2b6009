"""The formats of services that watch nodes' health: gpud, NVSentinel, and `systemctl status` of NVIDIA's own
services.

gpud's are `/v1/states` and `/v1/events`, NVSentinel's its health events; NVIDIA's services are the fabric manager, the
persistence daemon, DCGM and IMEX.

Sources: gpud, api/v1/types.go; NVSentinel, data-models/protobufs/health_event.proto.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from laggard.diagnose.file_format import (
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    documents,
    list_of,
    takes_all,
    text_of,
    without_colours,
)
from laggard.diagnose.rules import table
from laggard.model import Finding, Fix, Severity

_MAX_FINDINGS: Final = 64
_COMPONENTS: Final = table("components")
"""What a component or a check is about, by its name."""
_SEVERITIES: Final = {
    "unhealthy": Severity.CRITICAL,
    "fatal": Severity.CRITICAL,
    "critical": Severity.CRITICAL,
    "degraded": Severity.WARNING,
    "warning": Severity.WARNING,
}
_GPUD: Final = '"component"'


def recognise_gpud(content: FileContent) -> bool:
    if _GPUD not in content.text[: 1 << 14]:
        return False
    return any(_is_gpud(tree) for tree in documents(content)[:64])


def _is_gpud(tree: Any) -> bool:
    inside = next((tree[name] for name in ("states", "events") if isinstance(tree.get(name), list)), None)
    rows = inside or []
    known = all(isinstance(row, dict) and {"health", "healthy", "time", "name"} & set(row) for row in rows)
    return isinstance(tree.get("component"), str) and inside is not None and known


def judge_gpud(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    trees = [tree for tree in documents(content) if _is_gpud(tree)]
    facts = {"components": len(trees), "looked_for": "looked for components that gpud calls unhealthy"}
    return _judgement((found for tree in trees for found in _of_component(tree)), facts)


def _of_component(tree: dict[str, Any]) -> Iterator[Finding | str]:
    component = text_of(tree, "component")[:120]
    for row in (*list_of(tree, "states"), *list_of(tree, "events")):
        level = text_of(row, "health", "type").lower() or ("unhealthy" if row.get("healthy") is False else "")
        message = text_of(row, "message", "reason", "error", "name")
        if level not in _SEVERITIES or not message:
            continue
        actions = ", ".join(map(str, list_of(row.get("suggested_actions"), "repair_actions")))[:200]
        evidence = {"line": message[:300], "time": text_of(row, "time"), "suggested": actions}
        yield _finding(f"{component} {text_of(row, 'name')}", component, _SEVERITIES[level], evidence)


def recognise_nvsentinel(content: FileContent) -> bool:
    head = content.text[: 1 << 14].lower()
    return '"checkname"' in head and '"ishealthy"' in head and any(map(_event, documents(content)[:64]))


def judge_nvsentinel(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    events = [event for tree in documents(content) if (event := _event(tree))]
    wrong = [event for event in events if event["ishealthy"] is False]
    facts = {"events": len(events), "looked_for": "looked for events that are not healthy"}
    return _judgement((_of_event(event) for event in wrong), facts)


def _of_event(event: dict[str, Any]) -> Finding | str:
    message = text_of(event, "message") or text_of(event, "checkname")
    evidence = {
        "line": message[:300],
        "time": text_of(event, "generatedtimestamp"),
        "host": text_of(event, "nodename"),
        "errors": ", ".join(map(str, list_of(event, "errorcode")))[:200],
    }
    severity = Severity.CRITICAL if event.get("isfatal") is True else Severity.WARNING
    return _finding(text_of(event, "checkname"), _entity(event), severity, evidence)


def _event(tree: Any) -> dict[str, Any]:
    """The fields of a health event with names in lower case, as the database has them; empty: it is none."""
    inner = next((tree[name] for name in ("healthevent", "healthEvent") if isinstance(tree.get(name), dict)), tree)
    event = {name.lower(): value for name, value in inner.items()}
    return event if "checkname" in event and "ishealthy" in event else {}


def _entity(event: dict[str, Any]) -> str:
    """`GPU 0`; of several the first."""
    listed = [each for each in event.get("entitiesimpacted") or () if isinstance(each, dict)]
    named = {name.lower(): value for name, value in listed[0].items()} if listed else {}
    kind = text_of(named, "entitytype").upper() or text_of(event, "componentclass") or "the node"
    return f"{kind} {text_of(named, 'entityvalue')}".strip()[:120]


def _judgement(items: Iterable[Finding | str], facts: dict[str, Any]) -> FileJudgement:
    """Texts among the items are what no code of the catalogue stands for."""
    listed = list(itertools.islice(items, _MAX_FINDINGS))
    unknown = "; ".join([item for item in listed if isinstance(item, str)][:4])
    return FileJudgement(tuple(item for item in listed if isinstance(item, Finding)), facts, unknown)


def _finding(name: str, device: str, severity: Severity, evidence: dict[str, str]) -> Finding | str:
    about = _COMPONENTS.first(name)
    if about is None:
        return f"{device} is not well, it says: {evidence['line']}"
    evidence = {key: value for key, value in evidence.items() if value}
    row = about._replace(device=device, says=f"is not well: {evidence['line']}", fix=_COMPONENTS.advice["advice"])
    return row.found(evidence, severity)


GPUD: Final = FileFormat("gpud states and events", recognise_gpud, judge_gpud)
NVSENTINEL: Final = FileFormat("NVSentinel health events", recognise_nvsentinel, judge_nvsentinel)


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
