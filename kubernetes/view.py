"""The collector's view of the nodes, read over HTTP."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from laggard.address import without_login
from laggard.kubernetes.exchange import Exchange
from laggard.model import Finding
from laggard.wire import WireError, decode
from laggard.wire.nodes import NodeRow, NodesDocument


class CollectorError(Exception):
    """The collector cannot be asked. The text is one line."""


class _NodeFinding(msgspec.Struct, frozen=True):
    url: str
    finding: Finding


class _Findings(msgspec.Struct, frozen=True):
    """What is needed of laggard.node_findings/1."""

    findings: tuple[_NodeFinding, ...]


class FleetView(NamedTuple):
    """The agents, and each agent's findings by its URL, worst first."""

    rows: tuple[NodeRow, ...]
    findings: dict[str, tuple[Finding, ...]]


_PATHS: Final = ("/api/v1/nodes", "/api/v1/findings")


def read_view(exchange: Exchange, url: str) -> FleetView:
    """Asks the collector at `url`. Raises CollectorError."""
    bodies = []
    for path in _PATHS:
        answer = exchange.send("GET", f"{url.rstrip('/')}{path}")
        if answer.status == 404:
            raise CollectorError(f"{without_login(url)} is no collector (an agent has port 19400, a collector 19401)")
        if answer.status != 200:
            raise CollectorError(f"the collector {without_login(url)} does not answer: {answer.why}")
        bodies.append(answer.body)
    try:
        rows, found = decode(bodies[0], NodesDocument).nodes, decode(bodies[1], _Findings).findings
    except WireError as error:
        raise CollectorError(f"the collector {without_login(url)} answers something else: {error}") from None
    findings: dict[str, tuple[Finding, ...]] = {}
    for each in found:
        findings[each.url] = (*findings.get(each.url, ()), each.finding)
    return FleetView(rows, findings)
