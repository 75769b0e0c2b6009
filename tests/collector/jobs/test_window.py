"""Job windows: duplicates, bounds, restarts, claims and expiry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.window import CLAIM_SECONDS, JobWindows
from laggard.collector.locate.job_timings import WINDOW_STEPS
from laggard.constants import PHASES
from laggard.wire.ranks import StepRow

KEY = JobKey(1000, "job-1")


def _steps(windows: JobWindows, rank: int = 0) -> list[int]:
    return list(windows.jobs[KEY].ranks[rank].steps)


@given(st.lists(st.lists(st.integers(0, 400), max_size=40), max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_is_repeated_or_reordered_the_newest_steps_are_kept_once(make: Any, batches: list[list[int]]) -> None:
    windows = JobWindows()
    for now, batch in enumerate(batches):
        rows = [make.step_row(step) for step in batch]
        windows.ingest("a", make.ranks_document("n0", [make.rank_row(0, rows=rows)]), float(now))
    ingested = sorted({step for batch in batches for step in batch})
    if batches:
        kept = _steps(windows)
        assert kept == sorted(set(kept)) and len(kept) <= WINDOW_STEPS
        assert kept == ingested[-WINDOW_STEPS:]


def test_progress_is_a_step_that_was_not_known(make: Any) -> None:
    windows = JobWindows()
    for now, steps in ((1.0, (0, 1)), (2.0, (0, 1)), (3.0, (1, 2))):
        document = make.ranks_document("n0", [make.rank_row(0, rows=[make.step_row(step) for step in steps])])
        windows.ingest("a", document, now)
        assert windows.jobs[KEY].progressed_at == (3.0 if now == 3.0 else 1.0)


def test_a_higher_attempt_starts_the_job_anew_and_a_lower_one_is_ignored(make: Any) -> None:
    windows = JobWindows()
    windows.ingest("a", make.node("n0", [0, 1]), 1.0)
    again = make.ranks_document("n0", [make.rank_row(0, 2, [make.step_row(3)], attempt=1)])
    assert windows.ingest("a", again, 2.0) == 0
    assert set(windows.jobs[KEY].ranks) == {0} and _steps(windows) == [3]
    assert windows.ingest("b", make.node("n1", [2, 3]), 3.0) == 2
    assert set(windows.jobs[KEY].ranks) == {0}


def test_another_run_under_the_same_name_starts_anew(make: Any) -> None:
    windows = JobWindows()
    windows.ingest("a", make.node("n0", [0, 1]), 1.0)
    later = StepRow(0, 900.0, 900.3, (0.1,) * len(PHASES), 0.0)
    windows.ingest("a", make.ranks_document("n0", [make.rank_row(1, rows=[later])]), 2.0)
    assert set(windows.jobs[KEY].ranks) == {1} and _steps(windows, 1) == [0]


def test_the_file_of_a_process_that_is_over_does_not_win_over_the_running_one(make: Any) -> None:
    windows = JobWindows()
    over = make.rank_row(0, rows=[make.step_row(5)], state="died", last_progress_timestamp_seconds=9e9)
    windows.ingest("a", make.ranks_document("n0", [make.rank_row(0, rows=[make.step_row(1)]), over]), 1.0)
    assert windows.jobs[KEY].ranks[0].newest.state == "running" and _steps(windows) == [1]


def test_the_first_agent_to_report_a_rank_keeps_it_while_it_goes_on(make: Any) -> None:
    windows = JobWindows()
    windows.ingest("a", make.node("n0", [0]), 1.0)
    assert windows.ingest("b", make.node("n9", [0]), 2.0) == 1
    assert windows.jobs[KEY].ranks[0].newest.node == "n0"
    assert windows.ingest("b", make.node("n9", [0]), 2.0 + CLAIM_SECONDS) == 0
    assert windows.jobs[KEY].ranks[0].newest.node == "n9"


def test_two_owners_with_one_job_name_stay_apart(make: Any) -> None:
    windows = JobWindows()
    windows.ingest("a", make.node("n0", [0], owner=1000), 1.0)
    windows.ingest("b", make.node("n1", [0], owner=1001), 1.0)
    assert set(windows.jobs) == {KEY, JobKey(1001, "job-1")}


def test_ended_jobs_expire_and_are_not_brought_back_by_their_files(make: Any) -> None:
    windows = JobWindows(expire_after_seconds=900)
    windows.ingest("a", make.node("n0", [0], state="finished"), 0.0)
    windows.ingest("a", make.ranks_document("n0", [make.rank_row(0, state="finished")]), 850.0)
    windows.expire(899.0)
    assert KEY in windows.jobs
    windows.expire(901.0)
    assert not windows.jobs
    windows.ingest("a", make.ranks_document("n0", [make.rank_row(0, state="finished")]), 902.0)
    assert not windows.jobs


def test_a_running_job_expires_only_when_no_agent_reports_it(make: Any) -> None:
    windows = JobWindows(expire_after_seconds=900)
    windows.ingest("a", make.node("n0", [0]), 0.0)
    windows.ingest("a", make.ranks_document("n0", [make.rank_row(0)]), 850.0)  # hung: listed, no new steps
    windows.expire(1700.0)
    assert KEY in windows.jobs
    windows.expire(1751.0)
    assert not windows.jobs


def test_memory_is_bounded_and_running_jobs_are_not_dropped(make: Any) -> None:
    windows = JobWindows(max_jobs=2, max_ranks=3)
    windows.ingest("a", make.node("n0", [0, 1], job_id="first", state="finished"), 1.0)
    windows.ingest("a", make.node("n0", [0], job_id="second"), 2.0)
    assert windows.ingest("a", make.node("n0", [0, 1, 2], job_id="third"), 3.0) == 1
    assert {key.job_id for key in windows.jobs} == {"second", "third"}
    assert windows.ingest("a", make.node("n0", [0], job_id="fourth"), 4.0) == 1


def test_a_silent_agents_ranks_keep_their_steps_but_their_state_is_unknown(make: Any) -> None:
    windows = JobWindows()
    windows.ingest("a", make.node("n0", [0, 1]), 1.0)
    windows.ingest("b", make.node("n1", [2, 3]), 1.0)
    timings = windows.jobs[KEY].timings("job-1", {"a"}, {})
    assert timings.step_seconds.shape == (60, 4)
    assert [state.state for state in timings.states] == ["running", "running", "unknown", "unknown"]


def test_timings_hold_the_newest_steps_of_all_ranks(make: Any) -> None:
    windows = JobWindows()
    for source, rank, first in (("a", 0, 0), ("b", 1, 1000)):
        rows = [make.step_row(step) for step in range(first, first + WINDOW_STEPS)]
        windows.ingest(source, make.ranks_document("n0", [make.rank_row(rank, rows=rows)]), 1.0)
    steps = windows.jobs[KEY].timings("job-1", {"a", "b"}, {}).steps
    assert steps[0] == 1000 and len(steps) == WINDOW_STEPS


def test_a_rebooted_agents_ranks_are_dropped(make: Any) -> None:
    windows = JobWindows()
    windows.ingest("a", make.node("n0", [0, 1]), 1.0)
    windows.ingest("b", make.node("n1", [2, 3]), 1.0)
    windows.drop_source("a")
    assert set(windows.jobs[KEY].ranks) == {2, 3}
    windows.drop_source("b")
    assert not windows.jobs


@pytest.mark.parametrize("count", [0, 1])
def test_a_job_without_steps_has_timings_too(make: Any, count: int) -> None:
    windows = JobWindows()
    rows = [make.step_row(step) for step in range(count)]
    windows.ingest("a", make.ranks_document("n0", [make.rank_row(0, rows=rows)]), 1.0)
    assert windows.jobs[KEY].timings("job-1", {"a"}, {}).step_seconds.shape == (count, 1)
