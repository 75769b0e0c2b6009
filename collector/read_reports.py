"""The parts that a round needs of the agents' reports, read once for each: a report stays the same for rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from laggard.collector.finding_places import NodeGpus
from laggard.collector.incidents.fault import NodeSight
from laggard.collector.incidents.sights import node_sight
from laggard.collector.scrape.agent_state import AgentState
from laggard.model import Report


class ReadReport(NamedTuple):
    """`name`: the node's, as of its agent."""

    report: Report
    name: str
    gpus: NodeGpus
    skipped: str
    sight: NodeSight

    @classmethod
    def of(cls, report: Report, agent: AgentState) -> ReadReport:
        name, skipped = agent.name, agent.skipped
        return cls(report, name, NodeGpus.of(report.facts), skipped, node_sight(name, report))


class ReadReports:
    """By agent's URL, of those that have one. Not thread-safe: one round follows the other."""

    def __init__(self) -> None:
        self._read: dict[str, ReadReport] = {}

    def of(self, agents: Iterable[AgentState]) -> dict[str, ReadReport]:
        before, self._read = self._read, {}
        for agent in agents:
            if agent.report is None:
                continue
            known = before.get(agent.url)
            if known is None or known.report is not agent.report or known.name != agent.name:
                known = ReadReport.of(agent.report, agent)
            self._read[agent.url] = known
        return self._read
