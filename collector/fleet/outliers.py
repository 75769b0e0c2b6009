"""The nodes' comparison as the collector shows it: who is compared, and what it adds to a node's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from laggard.collector.fleet.consensus import consensus
from laggard.collector.node_finding import NodeFinding
from laggard.collector.scrape.agent import Agent
from laggard.model import Note
from laggard.text.words import capital, one_line
from laggard.wire import NodeRow

MOST_LINES = 12


class Fleet(NamedTuple):
    findings: tuple[NodeFinding, ...] = ()
    notes: tuple[Note, ...] = ()

    def codes(self) -> dict[str, tuple[str, ...]]:
        """By agent's URL, the codes that the comparison adds to its row."""
        by_url: dict[str, dict[str, None]] = {}
        for found in self.findings:
            by_url.setdefault(found.url, {})[found.finding.code] = None
        return {url: tuple(codes) for url, codes in by_url.items()}


def compare(agents: Sequence[Agent]) -> Fleet:
    """Those that answer now: what a node said before it fell silent has no vote."""
    labels: dict[str, Agent] = {}
    facts = {}
    for agent in agents:
        if agent.state == "up" and agent.report:
            label = agent.name if agent.name not in labels else f"{agent.name} ({agent.url})"
            labels[label], facts[label] = agent, agent.report.facts
    agreed = consensus(facts)
    found = ((labels[label], finding) for label, findings in agreed.findings.items() for finding in findings)
    return Fleet(tuple(NodeFinding(agent.url, agent.name, finding) for agent, finding in found), agreed.notes)


def with_codes(row: NodeRow, codes: Mapping[str, tuple[str, ...]]) -> NodeRow:
    """The row with the codes that its node got from the comparison."""
    return structs.replace(row, findings=tuple(dict.fromkeys((*row.findings, *codes.get(row.url, ())))))


def fleet_lines(findings: Sequence[NodeFinding], notes: Sequence[Note]) -> tuple[str, ...]:
    """For people: the outliers, then what the comparison cannot say."""
    told = [f"{it.node}: {it.finding.device} {it.finding.summary}" for it in findings[:MOST_LINES]]
    if len(findings) > MOST_LINES:
        told.append(f"and {len(findings) - MOST_LINES} more outliers")
    return tuple(one_line(line) for line in (*told, *(capital(note.text) for note in notes)))
