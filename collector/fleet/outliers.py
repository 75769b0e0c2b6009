"""Compares the nodes of the agents that answer, and shows the outliers in the nodes' rows and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from laggard.collector.fleet.compared_facts import COMPARED_PROBES, ComparedNode, compared_node
from laggard.collector.fleet.consensus import consensus_of
from laggard.collector.scrape.agent_state import AgentState
from laggard.model import Note, Report
from laggard.text.words import capital, printable_line
from laggard.wire.node_finding import NodeFinding
from laggard.wire.nodes import NodeRow

MAX_LINES = 12


class FleetComparison(NamedTuple):
    """The outliers, and notes on what could not be compared."""

    findings: tuple[NodeFinding, ...] = ()
    notes: tuple[Note, ...] = ()

    def codes_by_url(self) -> dict[str, tuple[str, ...]]:
        """The codes that the comparison adds to a node's row, by the URL of its agent."""
        by_url: dict[str, dict[str, None]] = {}
        for found in self.findings:
            by_url.setdefault(found.url, {})[found.finding.code] = None
        return {url: tuple(codes) for url, codes in by_url.items()}


class NodeComparison:
    """Compares the nodes round by round. What is compared is read once: it stays the same for many reports. Not
    thread-safe."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Report, ComparedNode]] = {}  # by the agent's URL

    def of(self, agents: Sequence[AgentState]) -> FleetComparison:
        """Compares the nodes whose agents answer now: the facts of a silent node are not counted."""
        by_label: dict[str, AgentState] = {}
        nodes: dict[str, ComparedNode] = {}
        before, self._read = self._read, {}
        for agent in agents:
            if agent.report is None:
                continue
            known = before.get(agent.url)
            if known is None or not _tells_the_same(known[0], agent.report):
                known = agent.report, compared_node(agent.report.facts)
            elif known[0] is not agent.report:
                known = agent.report, known[1]
            self._read[agent.url] = known
            if agent.state == "up":
                label = agent.name if agent.name not in by_label else f"{agent.name} ({agent.url})"
                by_label[label], nodes[label] = agent, known[1]
        agreed = consensus_of(nodes)
        found = ((by_label[label], finding) for label, findings in agreed.findings.items() for finding in findings)
        findings = tuple(NodeFinding(agent.url, agent.name, finding) for agent, finding in found)
        return FleetComparison(findings, agreed.notes)


def _tells_the_same(before: Report, now: Report) -> bool:
    """Whether two reports have the same facts to compare, which takes a tenth of the time of reading them. To Python 1
    and true are equal, too: a node that exchanges them is compared by what it said before."""
    try:
        return before is now or all(before.facts.get(probe) == now.facts.get(probe) for probe in COMPARED_PROBES)
    except RecursionError:  # facts may be nested as deeply as could just be read
        return False


def compare_nodes(agents: Sequence[AgentState]) -> FleetComparison:
    """The comparison of one round alone."""
    return NodeComparison().of(agents)


def with_codes(row: NodeRow, codes: Mapping[str, tuple[str, ...]]) -> NodeRow:
    """The row with the codes that its node got from the comparison."""
    return structs.replace(row, findings=tuple(dict.fromkeys((*row.findings, *codes.get(row.url, ())))))


def fleet_lines(findings: Sequence[NodeFinding], notes: Sequence[Note]) -> tuple[str, ...]:
    """The outliers, then the notes, one line each, for people."""
    lines = [f"{it.node}: {it.finding.device} {it.finding.summary}" for it in findings[:MAX_LINES]]
    if len(findings) > MAX_LINES:
        lines.append(f"and {len(findings) - MAX_LINES} more outliers")
    return tuple(printable_line(line) for line in (*lines, *(capital(note.text) for note in notes)))
