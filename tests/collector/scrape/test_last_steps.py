"""From when on steps are asked for at first: enough of them, and not all."""

from __future__ import annotations

from typing import Any

import pytest

from laggard.collector.scrape.agent_state import last_steps_since
from laggard.locate.job_timings import WINDOW_SECONDS, WINDOW_STEPS

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
