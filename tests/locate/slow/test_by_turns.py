"""Ranks that are slow by turns, and time in no phase that the others wait for: the pure parts, in whole verdicts."""

from __future__ import annotations

import numpy as np
import pytest
from support.timings import job, with_phases

from laggard.kit.constants import PHASES
from laggard.locate.slow.busy_threads import by_turns_notes, without_turns
from laggard.locate.slow.ranks import Slow
from laggard.locate.slow.steps import Steps
from laggard.locate.verdict import locate
from laggard.model import Verdict

OTHER = PHASES.index("other")
STEPS, RANKS = 400, 2


def now_and_then(rank: int, seconds: float, every: int) -> Slow:
    """A rank that is so many seconds slower in each so-manieth step."""
    hits = np.arange(STEPS) % every == rank
    return Slow((rank,), False, 0, seconds, 3.0, int(hits.sum()), 9.0, np.where(hits, seconds, 0.0), hits)


def kept(*slow: Slow, ranks: int = RANKS) -> list[int]:
    steps = Steps.usable(job(ranks, 40, per_node=ranks))
    assert steps is not None
    return [column for each in without_turns(steps, slow) for column in each.columns]


def test_of_two_that_are_slow_by_turns_none_is_accused_and_that_is_told() -> None:
    found = [now_and_then(0, 0.006, 4), now_and_then(1, 0.005, 6)]
    assert kept(*found) == []
    (note,) = by_turns_notes(job(RANKS, 40), found, [])
    assert note.ranks == (0, 1) and note.text.startswith("ranks 0-1 are slow by turns")
    assert by_turns_notes(job(RANKS, 40), found, found[:1]) == ()


def test_one_that_costs_clearly_more_is_named_alone() -> None:
    assert kept(now_and_then(0, 0.005, 5), now_and_then(1, 0.38, 16)) == [1]


def test_where_others_do_the_same_work_and_are_never_slow_both_are_named() -> None:
    found = now_and_then(0, 0.006, 4), now_and_then(1, 0.005, 6)
    assert kept(*found, ranks=3) == [0, 1]
    assert kept(found[0]) == [0]


@pytest.mark.parametrize(("rank", "verdict"), [(1, Verdict.UNKNOWN), (0, Verdict.OK)])
def test_time_in_no_phase_that_the_others_wait_for_is_told(rank: int, verdict: Verdict) -> None:
    """As of a script that reads its next batch between forward and backward. Rank 0 may write its log there."""
    made = job(RANKS, 60, per_node=RANKS)
    made.phase_seconds[:, rank, OTHER] += 0.15
    location = locate(with_phases(made))
    assert not location.culprits and location.verdict is verdict
    (note,) = [note for note in location.notes if note.kind == "unnamed_time"]
    assert note.ranks == (rank,) and "phase() of laggard.trainer_hooks" in note.text


def test_time_in_no_phase_that_nobody_waits_for_is_not_told() -> None:
    """A wait that no record tells of: the others do not wait longer for it."""
    made = job(RANKS, 60, per_node=RANKS)
    made.phase_seconds[:, 1, OTHER] += 0.15
    waited = made.waited_seconds.copy()
    made = with_phases(made)
    made.waited_seconds[:] = np.minimum(waited, 0.03)
    location = locate(made)
    assert location.verdict is Verdict.OK and not [note for note in location.notes if note.kind == "unnamed_time"]
