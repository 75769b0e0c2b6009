"""Kubernetes' reasons as values: what kubectl prints of events, pods and nodes, as text, JSON or YAML. Pure.

Sources: kubectl (staging/src/k8s.io/kubectl/pkg/describe/describe.go), core/v1's Event and PodStatus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.pastes.section import parts_of

MAX_EVENTS: Final = 4096
MAX_JSON_CHARACTERS: Final = 1 << 20
MAX_MESSAGE: Final = 4000

_TABLE: Final = re.compile(
    r"^\s*(?:\S+\s+)??(?:\S+\s+)??(Normal|Warning)\s+(\w{3,60})\s+"
    r"(?:((?:pod|node|job|replicaset|\w+)/[\w.-]+)|\S+(?: \(x\d+ over \S+\))?\s+\S+)\s+(\S.*)$"
)
_DESCRIBED: Final = re.compile(r"^(?:Name:\s+(\S+)|kind: (?:Pod|Node)\b.*)\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^(\s*)(?:- )?\"?([A-Za-z][\w .]{1,30}?)\"?:\s+(\S.{0,2000}?),?\s*$")
_POD: Final = re.compile(r"^(?:\S+\s+)??([\w.-]{2,253})\s+\d+/\d+\s+([A-Z][\w:]{2,60})\s+\d+")
_NODE: Final = re.compile(r"^([\w.-]{2,253})\s+(NotReady\S*)\s+\S+\s+\d+\w+\s+v\d")
_CONDITION: Final = re.compile(r"^\s+(Ready|MemoryPressure|DiskPressure|PIDPressure)\s+(True|False|Unknown)\s+\w")


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
    return [
        event._replace(again=event.subject in started, node=event.node or nodes.get(event.subject, ""))
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
        if match := _TABLE.match(line):
            kind, _, subject = (match[3] or "").partition("/")
            yield PodEvent(match[2], subject or name, subject if kind == "node" else "", match[4][:2000])
        elif match := _POD.match(line):
            yield PodEvent(match[2].rpartition(":")[2], match[1])
        elif match := _NODE.match(line):
            yield PodEvent("NodeNotReady", match[1], match[1])


def _from_descriptions(text: str) -> Iterator[PodEvent]:
    for head, part in parts_of(_DESCRIBED, text):
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
    yield from _conditions(name, lines)


def _fields(lines: list[str]) -> list[tuple[str, str]]:
    """Returns names and values; a message goes on in the lines that follow it."""
    fields: list[tuple[str, str]] = []
    for line in lines:
        if match := _FIELD.match(line):
            fields.append((match[2].lower(), match[3].strip("'\"")))
        elif fields and fields[-1][0] == "message" and line.strip() and len(fields[-1][1]) < MAX_MESSAGE:
            fields[-1] = ("message", f"{fields[-1][1]} {line.strip()}")
    return fields


def _conditions(name: str, lines: list[str]) -> Iterator[PodEvent]:
    """Yields what the conditions of a node tell; those of a pod have no pressure, and no heartbeat."""
    found = {match[1]: match[2] for line in lines if (match := _CONDITION.match(line))}
    if "MemoryPressure" not in found:
        return
    if found.get("Ready", "True") != "True":
        yield PodEvent("NodeNotReady", name, name)
    for kind in ("MemoryPressure", "DiskPressure"):
        if found.get(kind) == "True":
            yield PodEvent(f"NodeHas{kind}", name, name)
