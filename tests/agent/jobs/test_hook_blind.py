"""HOOK_BLIND of the jobs that run here, from the facts in rank files."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.agent.jobs import hook_blind_findings
from laggard.agent.ranks.reader import RankFiles
from laggard.model import Severity

Start = Callable[..., Any]


@pytest.fixture
def start_blind(start_rank: Start, tmp_path: Path) -> Start:
    """Starts a rank with `value` as its fact `unnamed_collectives`."""

    def start(rank: int, value: object) -> Any:
        path = tmp_path / f"facts-{rank}.json"
        path.write_text(json.dumps({"unnamed_collectives": value}))
        started = start_rank(rank=rank, world_size=16)
        started.do(f"facts {path}")
        return started

    return start


def test_ranks_that_cannot_name_collectives_are_reported_by_reason(start_blind: Start, rank_dir: Path) -> None:
    for rank, value in enumerate(("flight_recorder_off", "flight_recorder_off", "flight_recorder_small", None)):
        start_blind(rank, value)
    off, small = hook_blind_findings(RankFiles(str(rank_dir), "n0").read().ranks)
    assert {(each.code, each.severity, each.device) for each in (off, small)} == {
        ("HOOK_BLIND", Severity.INFO, "job j1")
    }
    assert "ranks 0-1: torch's Flight Recorder is off" in off.summary and off.evidence["ranks"] == [0, 1]
    assert {each.evidence["owner"] for each in (off, small)} == {os.geteuid()}, "whose job it is"
    assert "rank 2: torch's Flight Recorder is too small" in small.summary
    assert "TORCH_FR_BUFFER_SIZE" in off.fix.text and "TORCH_FR_BUFFER_SIZE" in small.fix.text


def test_a_rank_that_is_gone_is_not_blind(start_blind: Start, rank_dir: Path) -> None:
    start_blind(0, "flight_recorder_off").close()
    assert hook_blind_findings(RankFiles(str(rank_dir), "n0").read().ranks) == ()


@pytest.mark.parametrize("value", ["on", "", 3, True, ["flight_recorder_off"], {"flight_recorder_off": 1}])
def test_a_value_that_is_no_reason_makes_no_finding(value: object, start_blind: Start, rank_dir: Path) -> None:
    start_blind(0, value)
    assert hook_blind_findings(RankFiles(str(rank_dir), "n0").read().ranks) == ()


def test_the_agent_reports_it_of_the_job(start_agent: Start, start_blind: Start) -> None:
    start_blind(0, "flight_recorder_off")
    agent = start_agent()
    with urllib.request.urlopen(f"{agent.url}/api/v1/ranks", timeout=300) as answer:
        assert [found["code"] for found in json.load(answer)["findings"]] == ["HOOK_BLIND"]
    with urllib.request.urlopen(f"{agent.url}/metrics", timeout=300) as answer:
        assert 'laggard_finding{code="HOOK_BLIND",device="job j1"' in answer.read().decode()
