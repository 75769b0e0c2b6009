"""What a round needs of a report is read once."""

from typing import Any

import pytest
from support.collectors import Make

from laggard.collector import agent_state
from laggard.collector.agent_state import AgentState
from laggard.collector.incidents.fault_tracker import node_sight
from laggard.collector.targets import parse_target


def _agent(name: str, *codes: str) -> AgentState:
    return AgentState(parse_target(name), state="up", node=name, report=Make.report(name, codes))


def test_a_report_is_read_once_and_again_when_another_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(node: str, report: Any) -> Any:
        read.append(node)
        return node_sight(node, report)

    monkeypatch.setattr(agent_state, "node_sight", reading)
    agents = [_agent("n0"), _agent("n1", "GPU_LOST"), AgentState(parse_target("n2"))]

    def found() -> list[tuple[str, int] | None]:
        return [each.read and (each.read.name, len(each.read.sight.found)) for each in agents]

    for _ in range(3):
        assert found() == [("n0", 0), ("n1", 1), None], "n2 has given none"
    assert read == ["n0", "n1"]
    agents[0].report = Make.report("n0", ["GPU_LOST"])
    agents[1].node = "renamed"
    assert found() == [("n0", 1), ("renamed", 1), None]
    assert read == ["n0", "n1", "n0", "renamed"]
    agents[1].report = None
    assert found() == [("n0", 1), None, None], "one that is forgotten is not told of"
