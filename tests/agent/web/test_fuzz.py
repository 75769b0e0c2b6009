"""The agent's API asked at random: no 500, no traceback, and it answers afterwards as before."""

from __future__ import annotations

import httpx
import pytest
from support.agents import AgentProcess
from support.fuzz import expect_no_defect

PATHS = (
    "/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/report", "/api/v1/ranks", "/api/v1/collectives", "/nothing"
)  # fmt: skip


@pytest.mark.slow
def test_no_question_is_answered_by_a_defect(idle_agent: AgentProcess) -> None:
    expect_no_defect(idle_agent.url, PATHS, examples=300)
    assert httpx.get(f"{idle_agent.url}/-/healthy", trust_env=False).status_code == 200
