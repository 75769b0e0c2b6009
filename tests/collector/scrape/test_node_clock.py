"""Nodes whose clocks are wrong: who died first is told all the same."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.collectors import Make, answer_of

from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.agent_state import AgentState, NodeClock
from laggard.collector.targets import Target
from laggard.locate.hang.deaths import dead_ranks
from laggard.model import RankEnd
from laggard.wire.ranks import RanksDocument

HOUR = 3600.0


def died(rank: int, seconds_ago: float, ahead: float, tells_now: bool = True) -> RanksDocument:
    """What the agent of a node says whose clock is `ahead` seconds ahead."""
    now = time.time() + ahead
    end = RankEnd(now - seconds_ago, 0.05, signal="SIGKILL")
    rows = [Make.step_row(step) for step in range(20)]
    row: Any = Make.rank_row(rank, 2, rows, node=f"n{rank}", state="died", pid=0, end=end)
    return Make.ranks_document(f"n{rank}", [row], now=now if tells_now else None)


def accused(*documents: RanksDocument) -> list[tuple[int, ...]]:
    windows = JobWindows()
    for number, document in enumerate(documents):
        asked = time.monotonic()
        agent = AgentState(Target("http", f"n{number}:1"))
        agent.update_ranks(answer_of(document), windows, asked + 0.01, asked)
    ((key, job),) = windows.jobs.items()
    verdict = dead_ranks(job.timings(key.job_id, {"http://n0:1", "http://n1:1"}, {}))
    return [culprit.ranks for culprit in verdict.culprits]


@pytest.mark.parametrize("ahead", [0.0, HOUR, -HOUR])
def test_who_died_first_is_told_whatever_a_nodes_clock_says(ahead: float) -> None:
    assert accused(died(0, 30.0, 0.0), died(1, 20.0, ahead)) == [(0,)]


def test_without_the_nodes_time_its_clock_is_believed() -> None:
    """The reason why agents tell it."""
    assert accused(died(0, 30.0, 0.0), died(1, 20.0, -HOUR, tells_now=False)) == [(1,)]


def test_a_clock_is_right_where_the_answer_cannot_tell_otherwise() -> None:
    clock = NodeClock()
    clock.observe(at=1000.4, asked_at=1000.0, answered_at=1000.1)
    assert clock.ahead_seconds == 0.0
    clock.observe(at=990.0, asked_at=1000.0, answered_at=1000.2)
    assert (clock.ahead_seconds, clock.uncertain_seconds) == pytest.approx((-10.1, 0.1))
    clock.observe(at=1000.05, asked_at=1010.0, answered_at=1010.3)
    assert clock.ahead_seconds == pytest.approx(-10.1), "what explains the answer stays"
    clock.observe(at=1020.1, asked_at=1020.0, answered_at=1020.2)
    assert (clock.ahead_seconds, clock.uncertain_seconds) == (0.0, 0.0), "it was set right"
