"""The ledger: no GPU-hour counted twice, sums that add up, restarts, lost work and what is not seen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.collector.incidents.loss import Loss
from laggard.collector.incidents.moment import Moment
from laggard.collector.incidents.run import Run
from laggard.collector.incidents.tracker import IncidentTracker, Observation
from laggard.collector.jobs.job import JobKey
from laggard.collector.ledger.dividing import divided
from laggard.collector.ledger.goodput import goodput
from laggard.collector.ledger.interval import Reading, added
from laggard.collector.ledger.ledger import GROUPS, NO_NODE, CostDocument, ledger
from laggard.collector.ledger.spans import Order, Span
from laggard.model import Culprit

MONDAY = 4 * 86400.0 + 2900 * 604800.0  # 00:00 UTC
HOUR = 3600.0


def loss(number: int = 1, **changes: Any) -> Loss:
    """A rank that took a tenth of the time of a job of 8 for an hour."""
    values: dict[str, Any] = dict(
        id=number, owner=1000, job_id="train", kind="slow_compute", cause="slow_compute: GPU_THROTTLED", nodes=("n1",),
        ranks=8, opened_at=MONDAY, seen_at=MONDAY + HOUR, closed_at=MONDAY + HOUR, closed_because="recovered",
        lost_seconds=360.0, doubtful_seconds=0.0, window_seconds=20.0, progressed_at=MONDAY + HOUR, share=0.1,
    )  # fmt: skip
    return Loss(**{**values, **changes})


def run(began: float = MONDAY - HOUR, **changes: Any) -> Run:
    values: dict[str, Any] = dict(
        owner=1000, job_id="train", began_at=began, seen_at=began + 2 * HOUR, started_at=began, world_size=8,
        first_step=0, last_step=7000, step_seconds=7000.0, ended_at=began + 2 * HOUR,
    )  # fmt: skip
    return Run(**{**values, **changes})


def cost(losses: list[Loss], runs: list[Run] | None = None, **changes: Any) -> CostDocument:
    asked: dict[str, Any] = dict(since=MONDAY - 86400, until=MONDAY + 7 * 86400)
    return ledger(losses, runs or [], **{**asked, **changes})


spans = st.builds(
    lambda start, length, share, order, place: Span(start, start + length, share, order, place),
    st.integers(0, 50).map(float), st.integers(0, 30).map(float), st.floats(0, 1), st.sampled_from(Order),
    st.integers(0, 9),
)  # fmt: skip


@given(st.lists(spans, max_size=14), st.lists(st.integers(0, 80).map(float), max_size=4))
@settings(deadline=None, max_examples=400)
def test_no_second_is_given_to_two(some: list[Span], cuts: list[float]) -> None:
    pieces = list(divided(some, cuts))
    for second in range(81):
        here = [it for it in pieces if it.start <= second < it.end]
        given_out = sum(it.seconds / (it.end - it.start) for it in here)
        covering = [it for it in some if it.start <= second < it.end]
        most = 1.0 if any(it.order is not Order.SLOWS for it in covering) else sum(it.share for it in covering)
        assert given_out <= min(1.0, most) + 1e-9
        if any(it.order is Order.STOPS for it in covering):
            assert given_out == pytest.approx(1.0), "what stops the job takes all of the moment"
    assert not any(it.start < cut < it.end for it in pieces for cut in cuts)


losses = st.builds(
    lambda number, start, length, part, kind, node, doubt, back: loss(
        number, opened_at=MONDAY + start, seen_at=MONDAY + start + length, closed_at=MONDAY + start + length,
        lost_seconds=part * length, kind=kind, cause=kind, nodes=node, doubtful_seconds=doubt,
        progressed_at=MONDAY + start - back,
    ),
    st.integers(1, 10**9), st.integers(0, 9000), st.integers(1, 3000), st.floats(0, 1),
    st.sampled_from(("slow_compute", "slow_link", "hung", "dead")),
    st.sampled_from(((), ("n1",), ("n1", "n2"))), st.integers(0, 300), st.integers(0, 900),
)  # fmt: skip


@given(st.lists(losses, max_size=12, unique_by=lambda it: it.id))
@settings(deadline=None, max_examples=150)
def test_a_job_loses_no_more_than_it_had_and_every_table_adds_up(some: list[Loss]) -> None:
    documents = {by: cost(some, by=by) for by in GROUPS}
    total = documents["cause"].total
    moments = [it.opened_at for it in some] + [it.progressed_at for it in some]
    ends = [it.closed_at or 0.0 for it in some]
    had = (max(ends) - min(moments) + 400) * 8 / 3600 if some else 0.0
    assert 0 <= total.least <= total.likely + 1e-9 and total.likely <= total.most + 1e-9
    assert total.likely <= had + 1e-9
    for by, document in documents.items():
        assert document.total == total
        assert sum(row.gpu_hours.likely for row in document.rows) == pytest.approx(total.likely), by


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_verdicts_give_no_second_of_a_job_away_twice(data: st.DataObject) -> None:
    """Through the tracker that follows them: whatever they name, and however often."""
    tracker, at = IncidentTracker(300.0, Moment(MONDAY, 0.0)), 0.0
    closed: dict[int, Any] = {}
    for _ in range(data.draw(st.integers(2, 20))):
        at += data.draw(st.sampled_from((5.0, 30.0, 400.0)))
        named = data.draw(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("slow_compute", "hung")),
                                             st.floats(0, 1)), max_size=5))  # fmt: skip
        culprits = tuple(
            Culprit(kind, (rank,), node=f"n{rank}", recoverable_ratio=share) for rank, kind, share in named
        )
        seen = Observation(
            JobKey(1, "a"), True, True, culprits, MONDAY, 8, 20.0, data.draw(st.none() | st.floats(1, 9))
        )
        for it in tracker.observe([seen], Moment(MONDAY + at, at)):
            closed[it.id] = it
    everything = {**closed, **{it.id: it for it in tracker.open}}
    assert sum(it.lost_seconds for it in everything.values()) <= at + 1e-6
    assert sum(tracker.lost.values()) == pytest.approx(8 * sum(it.lost_seconds for it in everything.values()))


def test_an_hour_of_a_tenth_is_a_tenth_of_its_gpu_hours() -> None:
    found = cost([loss()], price=2.0, currency="EUR")
    assert found.total.likely == pytest.approx(0.8) and found.total.least < 0.8 < found.total.most
    assert found.money is not None and found.money.likely == pytest.approx(1.6)
    assert [(row.name, row.incidents) for row in found.rows] == [("slow_compute: GPU_THROTTLED", 1)]


def test_what_lies_outside_the_time_that_is_asked_for_is_left_out() -> None:
    half = cost([loss()], since=MONDAY + HOUR / 2)
    assert half.total.likely == pytest.approx(0.4)
    assert cost([loss()], until=MONDAY - 1).total.likely == 0


def test_weeks_begin_on_monday() -> None:
    over = loss(opened_at=MONDAY - HOUR / 2, closed_at=MONDAY + HOUR / 2, seen_at=MONDAY + HOUR / 2)
    weeks = cost([over], by="week").rows
    assert len(weeks) == 2 and weeks[0].name < weeks[1].name
    assert [row.gpu_hours.likely for row in weeks] == [pytest.approx(0.4)] * 2


def test_a_link_between_two_nodes_is_half_of_each() -> None:
    rows = cost([loss(nodes=("n1", "n2")), loss(2, job_id="other", nodes=())], by="node").rows
    assert {row.name: round(row.gpu_hours.likely, 3) for row in rows} == {"n1": 0.4, "n2": 0.4, NO_NODE: 0.8}


def test_a_hang_costs_all_ranks_since_the_last_progress() -> None:
    hang = loss(kind="hung", cause="hung", progressed_at=MONDAY - 600, lost_seconds=HOUR, closed_because="job_ended")
    slow = loss(2, opened_at=MONDAY - 600)
    found = cost([hang, slow])
    assert found.total.likely == pytest.approx(8 * (HOUR + 600) / 3600), (
        "the slow rank costs nothing while all stand still"
    )
    assert {row.name: row.gpu_hours.likely > 0 for row in found.rows} == {"hung": True, loss().cause: False}


def test_a_hang_with_a_clock_that_is_off_begins_with_its_verdict() -> None:
    for off in (-86400.0, 86400.0):
        hang = loss(kind="hung", progressed_at=MONDAY + off, lost_seconds=HOUR)
        assert cost([hang]).total.likely == pytest.approx(8.0)


def test_a_death_costs_until_the_restart_and_the_work_since_the_checkpoint() -> None:
    dead = loss(kind="dead", cause="dead", progressed_at=MONDAY, closed_at=MONDAY + 60, seen_at=MONDAY + 60,
                closed_because="job_ended", lost_seconds=60.0)  # fmt: skip
    first = run(checkpoint_step=5000, checkpoint_at=MONDAY - 1200, seen_at=MONDAY + 60, ended_at=MONDAY + 60)
    again = run(MONDAY + 360)
    found = cost([dead], [first, again])
    assert found.total.likely == pytest.approx(8 * (360 + 1200) / 3600) and found.unseen_work == 0
    unsaved = cost([dead], [run(seen_at=MONDAY + 60, ended_at=MONDAY + 60), again])
    assert unsaved.total.likely == pytest.approx(8 * 360 / 3600) and unsaved.unseen_work == 1
    tomorrow = cost([dead], [first, run(MONDAY + 86400)])
    assert tomorrow.total.likely == pytest.approx(8 * (60 + 1200) / 3600), "another job of that name is no restart"


def test_work_that_is_done_again_and_was_slow_is_lost_once() -> None:
    dead = loss(kind="dead", cause="dead", opened_at=MONDAY + HOUR, progressed_at=MONDAY + HOUR,
                closed_at=MONDAY + HOUR, closed_because="job_ended", lost_seconds=0.0)  # fmt: skip
    saved = run(checkpoint_step=3600, checkpoint_at=MONDAY, ended_at=MONDAY + HOUR)
    both = cost([loss(2), dead], [saved])
    assert both.total.likely == pytest.approx(8.0), (
        "an hour of 8 ranks: a tenth to the slow rank, the rest to the death"
    )
    assert {row.name: round(row.gpu_hours.likely, 2) for row in both.rows} == {
        "slow_compute: GPU_THROTTLED": 0.8,
        "dead": 7.2,
    }


def test_what_no_release_counted_is_told_and_not_guessed() -> None:
    found = cost([loss(lost_seconds=None), loss(2, ranks=0), loss(3)])
    assert (found.incidents, found.uncounted) == (1, 2)


def test_a_clock_that_was_set_back_costs_what_was_counted() -> None:
    back = loss(closed_at=MONDAY - 500, seen_at=MONDAY - 500)
    assert cost([back]).total.likely == pytest.approx(0.8)


def test_errors_of_one_fault_add_up_and_those_of_several_as_squares() -> None:
    def half_width(*errors: str) -> float:
        found = added(Reading(10.0, 7.0, 13.0, error) for error in errors)
        return found.most - found.likely

    assert half_width("a") == pytest.approx(3) and half_width("a", "a") == pytest.approx(6)
    assert half_width("a", "b") == pytest.approx(3 * 2**0.5)


def test_ettr_and_goodput() -> None:
    first = run(0.0, started_at=1.0, seen_at=HOUR, ended_at=HOUR, step_seconds=3000.0, last_step=3000,
                slow_seconds=300.0, checkpoint_step=2400, checkpoint_at=2400.0)  # fmt: skip
    second = run(HOUR + 600, seen_at=2 * HOUR, ended_at=2 * HOUR, step_seconds=2900.0, last_step=2900)
    found = goodput([first, second])
    assert found.ettr_ratio == pytest.approx((3000 + 2900 - 600) / 7200)
    assert found.goodput_ratio == pytest.approx((3000 + 2900 - 600 - 300) / 7200)
    assert found.gpu_hours == pytest.approx(16) and found.not_seen == ("time in the queue",)


def test_ettr_says_what_it_did_not_see() -> None:
    unwatched = run(0.0, first_step=1000, last_step=1100, step_seconds=100.0, started_at=0.0, seen_at=1200.0,
                    ended_at=1200.0)  # fmt: skip
    found = goodput([unwatched, run(1300.0)])
    assert found.ettr_ratio is not None and found.ettr_ratio > 0.9
    assert len(found.not_seen) == 4 and "1000 steps" in found.not_seen[1]


def test_nothing_timed_is_no_ratio() -> None:
    found = goodput([run(0.0, step_seconds=0.0)])
    assert (found.ettr_ratio, found.goodput_ratio) == (None, None)


def test_a_job_that_is_started_again_a_day_later_had_no_gpus_between() -> None:
    assert goodput([run(0.0), run(86400.0)]).gpu_hours == pytest.approx(32)
