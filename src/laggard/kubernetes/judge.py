"""The condition that each node should have, by what the collector, asked over HTTP, knows of its agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from laggard.kit.address import without_login
from laggard.kit.constants import AGENT_PORT, COLLECTOR_PORT
from laggard.kit.majority import grouped
from laggard.kit.tls import CLOSED
from laggard.kit.words import counted, listed, printable_line
from laggard.kubernetes.api_server import Answer, Exchange
from laggard.kubernetes.node import Health, Node
from laggard.model import Finding, Severity, Verdict
from laggard.wire import WireError, decode
from laggard.wire.nodes import NodeRow, NodesDocument


class CollectorError(Exception):
    """The collector cannot be asked. The text is one line."""


class _NodeFinding(msgspec.Struct, frozen=True):
    url: str
    finding: Finding


class _Findings(msgspec.Struct, frozen=True):
    """The fields of laggard.node_findings/1 that are needed here."""

    findings: tuple[_NodeFinding, ...]


class FleetView(NamedTuple):
    """The agents, and each agent's findings by its URL, worst first. `skipped`: how many checks judged nothing and
    why, a line for each kind of node, by NodeRow.skipped_as."""

    rows: tuple[NodeRow, ...]
    findings: dict[str, tuple[Finding, ...]]
    skipped: tuple[str, ...] = ()

    def skipped_line(self, row: NodeRow) -> str:
        """Empty: nothing was skipped, or it is not known."""
        place = row.skipped_as
        return self.skipped[place] if place is not None and 0 <= place < len(self.skipped) else ""


_PATHS: Final = ("/api/v1/nodes", "/api/v1/findings")


def _failure(url: str, answer: Answer) -> str:
    """The failure and what to do about it, as far as the answer tells."""
    name, ports = without_login(url), f"a collector's port is {COLLECTOR_PORT}, an agent's {AGENT_PORT}"
    if answer.status == HTTPStatus.NOT_FOUND:
        return f"{name} is no collector: write a collector's address ({ports})"
    if answer.status == HTTPStatus.UPGRADE_REQUIRED:
        return f"{name} speaks TLS: write https:// before its name"
    why = answer.why
    if answer.closed:
        why = CLOSED if url.startswith("https:") else f"{why}: write https:// if it speaks TLS"
    if urlsplit(url).port == AGENT_PORT:
        why = f"{why}; is it an agent? {ports}"
    return f"the collector {name} does not answer: {why}"


def read_view(exchange: Exchange, url: str) -> FleetView:
    """Asks the collector at `url`. Raises CollectorError."""
    bodies = []
    for path in _PATHS:
        answer = exchange.send("GET", f"{url.rstrip('/')}{path}")
        if answer.status != 200:
            raise CollectorError(_failure(url, answer))
        bodies.append(answer.body)
    try:
        fleet, found = decode(bodies[0], NodesDocument), decode(bodies[1], _Findings).findings
    except WireError as error:
        raise CollectorError(f"the collector {without_login(url)} answers something else: {error}") from None
    findings: dict[str, tuple[Finding, ...]] = {}
    for each in found:
        findings[each.url] = (*findings.get(each.url, ()), each.finding)
    return FleetView(fleet.nodes, findings, fleet.skipped)


TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

_MAX_NAMED: Final = 3
_MESSAGE_CHARACTERS: Final = 480


def judge(nodes: Iterable[Node], view: FleetView) -> dict[str, Health]:
    """The health of each node that has an agent, by the node's name. A node without one is left out, unless it has a
    condition, which is then Unknown; so is a node whose agent has not been asked yet."""
    by_name = grouped(view.rows, lambda row: row.node or "")
    unnamed = by_name.pop("", [])
    found: dict[str, Health] = {}
    for node in nodes:
        rows = [*by_name.get(node.name, ()), *(row for row in unnamed if _host(row) in node.addresses)]
        health = _health(node, rows, view)
        if health:
            found[node.name] = health
    return found


class Misnamed(NamedTuple):
    """An agent that reports the name `reported`, which no node has, at an address of the node `node`."""

    url: str
    reported: str
    node: str


def misnamed(nodes: Collection[Node], view: FleetView) -> tuple[Misnamed, ...]:
    """The agents that speak for no node, since they report a name that Kubernetes does not have. An agent that is at no
    node's address is none of this cluster's."""
    by_address = {address: node.name for node in nodes for address in node.addresses}
    names = {node.name for node in nodes}
    found = [(row, by_address.get(_host(row))) for row in view.rows if row.node and row.node not in names]
    return tuple(Misnamed(row.url, row.node, node) for row, node in found if node and row.node)


def misnamed_line(found: Sequence[Misnamed]) -> str:
    """The advice about misnamed agents, as one line."""
    told = [f"{each.url} calls itself {each.reported} and is at the address of {each.node}" for each in found]
    text = f"agents report nodes that Kubernetes does not have: {listed(told, _MAX_NAMED)}"
    return f"{printable_line(text, 2 * _MESSAGE_CHARACTERS)}; set LAGGARD_NODE there to the node's name"


def summary(health: Mapping[str, Health]) -> str:
    """The states of the nodes, as one line: `3 nodes: 2 healthy, 1 unhealthy (GPU_LOST 1)`."""
    if not health:
        return "no node of Kubernetes has an agent that the collector knows"
    parts = []
    for status, word in ((TRUE, "healthy"), (FALSE, "unhealthy"), (UNKNOWN, "unknown")):
        reasons = Counter(found.reason for found in health.values() if found.status == status)
        if reasons:
            why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(_MAX_NAMED))
            parts.append(f"{reasons.total()} {word}" + ("" if status == TRUE else f" ({why})"))
    return printable_line(f"{counted(len(health), 'node')}: {', '.join(parts)}", _MESSAGE_CHARACTERS)


def _health(node: Node, rows: list[NodeRow], view: FleetView) -> Health | None:
    own = [row for row in rows if _host(row) in node.addresses]
    if not own and rows:
        where = printable_line(", ".join(row.url for row in rows[:_MAX_NAMED]), _MESSAGE_CHARACTERS // 2)
        message = f"{where} reports under this node's name, and is not at one of its addresses"
        return Health(UNKNOWN, "AgentElsewhere", message)
    if not own:
        return Health(UNKNOWN, "NoAgent", "no agent of laggard is known at this node") if node.condition else None
    row = max(own, key=lambda row: row.state == "up")
    if row.state == "waiting":
        return None
    if row.state != "up":
        return Health(UNKNOWN, "AgentSilent", _line(f"the agent {row.url} is {row.state}: {row.reason}"))
    return _by_verdict(row, view.findings.get(row.url, ()), view.skipped_line(row))


def _by_verdict(row: NodeRow, findings: tuple[Finding, ...], skipped: str) -> Health:
    critical = [
        finding for finding in findings if finding.severity is Severity.CRITICAL and finding.code in row.findings
    ]
    if row.verdict == Verdict.FAIL.value:
        code = critical[0].code if critical else (row.findings or ("ProbesFail",))[0]
        return Health(FALSE, code, _text(critical, row))
    if row.verdict == Verdict.OK.value:
        warned = dict.fromkeys(finding.code for finding in findings if finding.severity is Severity.WARNING)
        parts = ["no critical finding", *([f"warnings: {', '.join(warned)}"] if warned else ())]
        return Health(TRUE, "Healthy", _line("; ".join((*parts, *([skipped] if skipped else ())))))
    why = f": {row.reason}" if row.reason else "; the agent's report says why"
    return Health(UNKNOWN, "ProbesUnknown", _line(f"the probes cannot tell{why}"))


def _text(critical: list[Finding], row: NodeRow) -> str:
    if not critical:
        return _line(f"the probes fail: {', '.join(row.findings)}")
    lines = [f"{finding.device} {finding.summary} ({finding.code})" for finding in critical[:_MAX_NAMED]]
    more = [f"{len(critical) - _MAX_NAMED} more"] if len(critical) > _MAX_NAMED else []
    return _line("; ".join((*lines, *more)))


def _line(text: str) -> str:
    return printable_line(text, _MESSAGE_CHARACTERS)


def _host(row: NodeRow) -> str:
    try:
        return urlsplit(row.url).hostname or ""
    except ValueError:
        return ""
