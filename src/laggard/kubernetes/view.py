"""The collector's view of the nodes, read over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from laggard.address import without_login
from laggard.constants import AGENT_PORT, COLLECTOR_PORT
from laggard.http.tls import CLOSED
from laggard.kubernetes.exchange import Answer, Exchange
from laggard.model import Finding
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
