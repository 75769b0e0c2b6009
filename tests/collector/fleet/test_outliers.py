"""The comparison of nodes, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from laggard.collector import outliers
from laggard.collector.outliers import ComparedNode, NodeComparison, compared_node
from laggard.collector.scrape.agent_state import AgentState
from laggard.collector.targets import parse_target
from laggard.model import Report, Verdict


def _report(node: str, kernel: str) -> Report:
    identity = {"product": "HGX", "gpu_models": ["H100"], "kernel_release": kernel}
    return Report(Verdict.OK, node, 0.1, (), (), {"identity": identity})


def _agents(*kernels: str) -> list[AgentState]:
    return [
        AgentState(parse_target(f"n{number}"), state="up", node=f"n{number}", report=_report(f"n{number}", kernel))
        for number, kernel in enumerate(kernels)
    ]


def test_a_report_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report stays for several rounds, and to read one takes longer than all else that is compared."""
    read: list[Any] = []

    def reading(facts: Mapping[str, Any]) -> ComparedNode:
        read.append(facts)
        return compared_node(facts)

    monkeypatch.setattr(outliers, "compared_node", reading)
    agents, comparison = _agents("6.1", "6.1", "6.1", "5.15"), NodeComparison()
    for _ in range(3):
        assert [found.node for found in comparison.of(agents).findings] == ["n3"]
    assert len(read) == 4
    agents[3].report = _report("n3", "6.1")
    assert comparison.of(agents) == NodeComparison().of(agents) and not comparison.of(agents).findings
    assert len(read) == 4 + 1 + 4, "the one that is new, and all by who compares for the first time"


def test_what_is_compared_is_read_again_where_it_changed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports come each minute, with other times and temperatures, and the same versions."""
    read: list[Any] = []
    monkeypatch.setattr(outliers, "compared_node", lambda facts: read.append(facts) or compared_node(facts))
    agents, comparison = _agents("6.1", "6.1", "6.1", "5.15"), NodeComparison()
    comparison.of(agents)
    for agent, kernel in zip(agents, ("6.1", "6.1", "6.1", "5.15"), strict=True):
        agent.report = _report(str(agent.node), kernel)
        agent.report.facts["thermal"] = {"celsius": 61.5}
    assert [found.node for found in comparison.of(agents).findings] == ["n3"] and len(read) == 4
    for _ in range(2):
        nested: Any = 1
        for _ in range(5000):
            nested = [nested]
        agents[3].report = _report("n3", "5.15")
        agents[3].report.facts["inventory"] = {"rdma": nested}
        assert [found.node for found in comparison.of(agents).findings] == ["n3"]
    assert len(read) == 6, "what cannot be compared with what was before is read"


def test_an_agent_that_falls_silent_or_goes_is_not_counted() -> None:
    agents, comparison = _agents("6.1", "6.1", "6.1", "5.15"), NodeComparison()
    comparison.of(agents)
    agents[3].state = "down"
    assert not comparison.of(agents).findings
    agents[3].state = "up"
    assert [found.node for found in comparison.of(agents).findings] == ["n3"]
    assert not comparison.of(agents[:3]).findings
