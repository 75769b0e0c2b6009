"""The agent's API asked at random: no 500, no traceback, and it answers afterwards as before."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.agents import AgentProcess, RankProcess
from support.fuzz import described_paths, expect_as_described, expect_no_defect

pytestmark = pytest.mark.slow


def test_each_answer_is_as_described(
    start_agent: Callable[..., AgentProcess], start_rank: Callable[..., RankProcess], tmp_path: Path
) -> None:
    """With a rank, so that the documents are not empty."""
    start_rank().do("step", "collectives", "block", "beat")
    agent = start_agent()
    assert agent.request("/nothing").json()["error"] == f"nothing here; there is {', '.join(described_paths('agent'))}"
    expect_as_described("agent", agent.url, tmp_path)
    assert "Traceback" not in agent.log.read_text()


def test_no_question_is_answered_by_a_defect(idle_agent: AgentProcess) -> None:
    expect_no_defect(idle_agent.url, (*described_paths("agent"), "/nothing"), examples=200)
    assert idle_agent.request("/-/healthy").status == 200
    assert "Traceback" not in idle_agent.log.read_text()
