"""The format `kubectl describe, get events`: the reasons for which pods did not start or were ended, as text, JSON or
YAML.

Sources: NVIDIA's k8s-device-plugin (internal/rm/health.go), kubectl (staging/src/k8s.io/kubectl/pkg/describe/
describe.go), core/v1's Event and PodStatus.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.entities import entities, only
from laggard.diagnose.pastes.section import Section, parts_of, paste_format
from laggard.diagnose.rules import Row, patterns, table
from laggard.model import Finding, Fix, Severity
from laggard.probes.probe import Fact

_P: Final = patterns("paste_forms", "pods_")

MAX_EVENTS: Final = 4096
MAX_JSON_CHARACTERS: Final = 1 << 20
MAX_MESSAGE: Final = 4000


class PodEvent(NamedTuple):
    """One reason. `again`: the pod ran after it. Empty texts are not known."""

    reason: str
    subject: str
    node: str = ""
    message: str = ""
    again: bool = False
    memory_limit: str = ""


def parse_events(text: str) -> list[PodEvent]:
    """Returns the reasons, without those that a later event of the same pod has overcome: these are `again`."""
    events = [*_from_json(text), *_from_tables(text), *_from_descriptions(text)][:MAX_EVENTS]
    started = {event.subject for event in events if event.reason in ("Started", "Running", "Succeeded")}
    nodes = {event.subject: event.node for event in events if event.node}
    named = entities(text)
    pod, node = only(named, "pod"), only(named, "host")
    return [
        event._replace(
            again=event.subject in started,
            subject=event.subject or pod,
            node=event.node or nodes.get(event.subject, "") or ("" if event.subject else node),
        )
        for event in events
    ]


def _from_json(text: str) -> Iterator[PodEvent]:
    start = text.find("{")
    if start < 0 or len(text) > MAX_JSON_CHARACTERS or text[:start].strip():
        return
    try:
        tree = json.loads(text[start:])
    except (ValueError, RecursionError):
        return
    items = tree.get("items", [tree]) if isinstance(tree, dict) else []
    for item in items if isinstance(items, list) else []:
        yield from _from_object(item)


def _from_object(item: Any) -> Iterator[PodEvent]:
    if not isinstance(item, dict):
        return
    about, source = item.get("involvedObject") or item.get("regarding"), item.get("source")
    if isinstance(about, dict):
        node = source.get("host", "") if isinstance(source, dict) else ""
        node = about.get("name", "") if about.get("kind") == "Node" else node
        message = item.get("message") or item.get("note") or ""
        yield PodEvent(str(item.get("reason", "")), str(about.get("name", "")), str(node), str(message)[:2000])


def _from_tables(text: str) -> Iterator[PodEvent]:
    name = ""
    for line in text.split("\n")[:65536]:
        if line.startswith("Name:"):
            name = line.partition(":")[2].strip()
        if match := _P["table"].match(line):
            kind, _, subject = (match[3] or "").partition("/")
            yield PodEvent(match[2], subject or name, subject if kind == "node" else "", match[4][:2000])
        elif match := _P["pod"].match(line):
            yield PodEvent(match[2].rpartition(":")[2], match[1])
        elif match := _P["node"].match(line):
            yield PodEvent("NodeNotReady", match[1], match[1])


def _from_descriptions(text: str) -> Iterator[PodEvent]:
    for head, part in parts_of(_P["described"], text):
        yield from _from_description(head[1] or "", part.split("\n\n\n")[0].split("\n"))


def _from_description(name: str, lines: list[str]) -> Iterator[PodEvent]:
    fields = _fields(lines)
    first = dict(reversed(fields))
    name = name or first.get("name", "")
    node = first.get("nodename") or first.get("node", "").partition("/")[0]
    limit = first.get("memory", "")
    messages = [value for key, value in fields if key == "message"]
    state = first.get("status") or first.get("phase") or ""
    if state in ("Running", "Succeeded") and any(key == "state" and value == "Running" for key, value in fields):
        yield PodEvent("Running", name, node)
    elif state == "Succeeded":
        yield PodEvent(state, name, node)
    for key, value in fields:
        if key == "reason":
            yield PodEvent(value, name, node, messages[0] if messages else "", memory_limit=limit)


def _fields(lines: list[str]) -> list[tuple[str, str]]:
    """Returns names and values; a message goes on in the lines that follow it."""
    fields: list[tuple[str, str]] = []
    for line in lines:
        if match := _P["field"].match(line):
            fields.append((match[2].lower(), match[3].strip("'\"")))
        elif fields and fields[-1][0] == "message" and line.strip() and len(fields[-1][1]) < MAX_MESSAGE:
            fields[-1] = ("message", f"{fields[-1][1]} {line.strip()}")
    return fields


_SAYS: Final = table("pods")
ROWS: Final = _SAYS.rows
"""The first that fits a reason and its message counts; other reasons are no faults."""
_WARNINGS: Final = ("JOB_EXCEPTION",)


def read(section: Section) -> Iterator[Finding | Fact]:
    events = parse_events(section.text)
    yield Fact("events", len(events))
    for xid, device in dict.fromkeys(_P["xid"].findall(section.text)):
        yield _SAYS.sections["xid"].found({"xid": int(xid)}, device=device, xid=xid)
    told: set[tuple[str, str]] = set()
    for event, row in _worst_first(events):
        if (row.code, event.subject) not in told:
            told.add((row.code, event.subject))
            yield _finding(event, row)


def _worst_first(events: list[PodEvent]) -> list[tuple[PodEvent, Row]]:
    """Returns the faults by the order of the table; a pod that ends again and again has its reason named elsewhere."""
    found = [
        (event, row) for event in events if (row := row_of(event)) and not (event.again and "overcome" in row.more)
    ]
    named = {event.subject for event, row in found if row.code not in _WARNINGS}
    kept = [pair for pair in found if pair[1].code not in _WARNINGS or pair[0].subject not in named]
    return sorted(kept, key=lambda pair: (not pair[0].message, ROWS.index(pair[1])))


def row_of(event: PodEvent) -> Row | None:
    told = f"{event.reason}: {event.message}"
    return next((row for row in ROWS if row.regex.match(told)), None)


def _finding(event: PodEvent, row: Row) -> Finding:
    kind = "node" if event.node == event.subject and event.node else "pod"
    on = f" on {event.node}" if event.node and kind == "pod" else ""
    limit = f" of {event.memory_limit}" if row.code == "JOB_HOST_OUT_OF_MEMORY" and event.memory_limit else ""
    said = f": {event.message}" if event.message else ""
    again = " before it started again" if event.again else ""
    space, slash, name = event.subject.rpartition("/")
    describe = f"kubectl describe {kind} {f'-n {space} ' if slash else ''}{name}"
    return row._replace(
        device=f"{kind} {event.subject or '(not named)'}{on}",
        says=f"{row.says}{limit} ({event.reason}){again}{said}"[:400],
        fix=Fix(row.fix.text, (describe,) if name else ("kubectl get pods -A -o wide",)),
    ).found(
        {"node": event.node or None, "reason": event.reason, "message": event.message or None},
        Severity.WARNING if event.again else None,
    )


PODS: Final = paste_format("kubectl describe, get events", _P["head"], read)
