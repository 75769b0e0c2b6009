"""What a round needs of a report is read once."""

from typing import Any

import pytest
from support.collectors import Make

from laggard.collector.incidents import fault_tracker as read_reports
from laggard.collector.incidents.fault_tracker import ReadReports, node_sight
from laggard.collector.scrape.agent_state import AgentState
from laggard.collector.targets import parse_target


def _agent(name: str, *codes: str) -> AgentState:
    return AgentState(parse_target(name), state="up", node=name, report=Make.report(name, codes))


def test_a_report_is_read_once_and_again_when_another_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(node: str, report: Any) -> Any:
        read.append(node)
        return node_sight(node, report)

    monkeypatch.setattr(read_reports, "node_sight", reading)
    agents, reports = [_agent("n0"), _agent("n1", "GPU_LOST"), AgentState(parse_target("n2"))], ReadReports()
    for _ in range(3):
        found = reports.of(agents)
        assert list(found) == [agents[0].url, agents[1].url], "n2 has given none"
    assert read == ["n0", "n1"]
    assert [len(it.sight.found) for it in found.values()] == [0, 1]
    agents[0].report = Make.report("n0", ["GPU_LOST"])
    agents[1].node = "renamed"
    assert [(it.name, len(it.sight.found)) for it in reports.of(agents).values()] == [("n0", 1), ("renamed", 1)]
    assert read == ["n0", "n1", "n0", "renamed"]
    agents[1].report = None
    assert list(reports.of(agents)) == [agents[0].url], "one that is forgotten is not told of"
