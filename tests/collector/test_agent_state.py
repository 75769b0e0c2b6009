"""What a collector keeps of each agent between rounds: its last steps, its clock, its report, and whose turn it is."""

import time
from typing import Any

import pytest
from msgspec import structs
from support.collectors import Make, answer_of

from laggard.collector import agent_state as shared_reports
from laggard.collector.agent_state import (
    LINE_SECONDS,
    AgentState,
    NodeClock,
    SharedReports,
    StateChanges,
    last_steps_since,
)
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.connections import EARLY_SHARE, in_turn
from laggard.collector.targets import Target
from laggard.locate.hang.deaths import dead_ranks
from laggard.locate.job_timings import WINDOW_SECONDS, WINDOW_STEPS
from laggard.model import ProbeResult, RankEnd, Report, Verdict
from laggard.wire.ranks import RanksDocument


def test_a_thousand_agents_that_go_down_are_one_line() -> None:
    changes = StateChanges()
    for number in range(1000):
        changes.add(f"http://n{number}", "down", "connection refused")
    ((_, line),) = changes.lines(0.0)
    assert line.startswith("1000 agents are down: http://n0 (connection refused), ") and line.endswith(" and 996 more")


def test_one_line_a_minute_holds_what_came_since() -> None:
    changes = StateChanges()
    changes.add("a", "down", "x")
    assert len(changes.lines(0.0)) == 1
    for now in range(1, 60, 5):  # b flaps
        changes.add("b", "up", "")
        changes.add("b", "down", "y")
        changes.add("c", "slow", "z")
        changes.lines(float(now))
    assert [line for _, line in changes.lines(LINE_SECONDS)] == ["1 agent is down: b (y)"]


NOW = 1.7e9
NEXT = 100_000.0


def _since(make: Any, *ranks: Any, now: float | None = NOW) -> float:
    return last_steps_since(make.ranks_document("n0", ranks, next=NEXT, now=now))


def _row(make: Any, rank: int, steps: int, seconds: float, quiet: float = 0.0) -> Any:
    return make.rank_row(rank, steps=steps, step_seconds=steps * seconds, last_progress_timestamp_seconds=NOW - quiet)


@pytest.mark.parametrize("seconds", [0.02, 0.5, 4.0])
def test_all_steps_that_are_kept_are_asked_for(make: Any, seconds: float) -> None:
    back = NEXT - _since(make, _row(make, 0, 10_000, seconds))
    assert max(WINDOW_SECONDS, WINDOW_STEPS * seconds) < back <= 3 * max(WINDOW_SECONDS, WINDOW_STEPS * seconds)


def test_the_rank_whose_steps_lie_furthest_back_counts(make: Any) -> None:
    fast, slow = _row(make, 0, 5000, 0.1), _row(make, 1, 500, 3.0)
    assert _since(make, fast, slow) == _since(make, slow) < _since(make, fast)


def test_of_a_rank_that_hangs_the_steps_before_are_asked_for(make: Any) -> None:
    assert _since(make, _row(make, 0, 1000, 1.0, quiet=5000.0)) == _since(make, _row(make, 0, 1000, 1.0)) - 5000.0


def test_where_it_cannot_be_told_all_are_asked_for(make: Any) -> None:
    assert _since(make, _row(make, 0, 1000, 1.0), now=None) == 0.0
    assert _since(make) == 0.0
    assert _since(make, _row(make, 0, 100, 1e6)) == 0.0
    assert _since(make, make.rank_row(0, steps=0, last_progress_timestamp_seconds=0.0)) < NEXT


def test_a_time_in_the_future_takes_no_steps_away(make: Any) -> None:
    ahead = _row(make, 0, 1000, 1.0, quiet=-50.0)
    assert _since(make, ahead) == _since(make, _row(make, 0, 1000, 1.0))


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


def _report(node: str, seconds: float = 0.1, **facts: Any) -> Report:
    probe = ProbeResult("gpu_count", Verdict.OK, "8 GPUs", seconds, (), "")
    return Report(Verdict.OK, node, 1.0, (probe,), (), facts)


def test_alike_parts_of_two_nodes_are_one_object() -> None:
    shared = SharedReports()
    one, other = (shared.of(_report(node, seconds, acs={"a": [1, 2]})) for node, seconds in (("n0", 0.1), ("n1", 0.2)))
    assert one.facts["acs"] is other.facts["acs"] and one.probes[0] is other.probes[0]
    assert (one.node, other.node) == ("n0", "n1")
    plain = _report("n1", acs={"a": [1, 2]})
    assert other == structs.replace(plain, probes=(structs.replace(plain.probes[0], elapsed_seconds=0.0),))


def test_what_python_holds_for_equal_is_not_exchanged() -> None:
    shared = SharedReports()
    values: list[Any] = [1, True, 1.0, "1", [1], [True], {"a": 1}, {"a": True}, {"a": 1, "b": 2}, {"b": 2, "a": 1}]
    told = [shared.of(_report("n0", acs=value)).facts["acs"] for value in values]
    assert [repr(value) for value in told] == [repr(value) for value in values]
    assert shared.of(_report("n0", other={"a": 1})).facts["other"] == {"a": 1}


def test_facts_that_are_nested_too_deeply_stay_as_they_are() -> None:
    nested: Any = 1
    for _ in range(5000):
        nested = [nested]
    assert SharedReports().of(_report("n0", acs=nested)).facts["acs"] is nested


def test_agents_that_tell_something_else_each_time_fill_no_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr(shared_reports, "MAX_PARTS", 10)
    shared = SharedReports()
    for number in range(1000):
        assert shared.of(_report("n0", acs=number)).facts["acs"] == number
    assert len(shared._parts) <= 10 + 3, "what came since it was full last, and one report more"
    large = "x" * (shared_reports.MAX_PART_BYTES + 1)
    one, other = (shared.of(_report("n0", acs=[large])).facts["acs"] for _ in range(2))
    assert one == other and one is not other


@pytest.mark.parametrize(("failed", "others"), [(0, 0), (0, 9), (9, 0), (1, 5), (30, 4000), (2000, 2000), (9, 4)])
def test_everybody_is_asked_once_and_who_failed_early(failed: int, others: int) -> None:
    silent, answering = range(-failed, 0), range(others)
    order = list(in_turn(silent, answering))
    assert sorted(order) == [*silent, *answering]
    assert [each for each in order if each >= 0] == list(answering), "the others keep their order"
    places = [place for place, each in enumerate(order) if each < 0]
    if 2 <= failed <= EARLY_SHARE * others:
        assert places[-1] <= EARLY_SHARE * others + failed
        assert all(after - before > 1 for before, after in zip(places, places[1:], strict=False))
