"""Localisation as a function of arrays: the culprit is named, victims are not, and healthy jobs have none."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.timings import job as timings_of
from support.timings import scaled, with_phases

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings, NodeFindings, RankState
from laggard.locate.verdict import locate
from laggard.model import RankEnd, Verdict
from laggard.wire.ranks import BeatRow, InFlight, LaneProgress

RUNNING = RankState("running", 59, None, None)
BUSY = np.array([0.01, 0.05, 0.08, 0.02, 0.0, 0.0, 0.0, 0.0, 0.005])  # seconds in each phase
TIMED = np.flatnonzero(BUSY)


def job(
    ranks: int = 4, steps: int = 60, noise: float = 0.03, seed: int = 0, world_size: int | None = None, **changes: Any
) -> JobTimings:
    """A synchronous job: each step lasts as long as its busiest rank, and the others wait for it."""
    generator = np.random.default_rng(seed)
    phases = np.zeros((steps, ranks, len(PHASES)))
    phases[:, :, TIMED] = BUSY[TIMED] * generator.lognormal(0, noise, (steps, ranks, len(TIMED)))
    for slow in changes.pop("slow", ()):
        phases[slow.get("since", 0) : slow.get("until"), slow["rank"], PHASES.index(slow["phase"])] += slow["by"]
    made = with_phases(timings_of(ranks, steps, per_node=2, first_step=0, states=(RUNNING,) * ranks), phases)
    return dataclasses.replace(made, world_size=world_size or ranks, **changes)


def test_where_waits_are_not_seen_nobody_is_accused_and_nothing_is_ok() -> None:
    slow = [dict(rank=1, phase="forward", by=0.1)]
    for location in (locate(job(slow=slow, unseen_waits=(2, 3))), locate(job(unseen_waits=(0, 1, 2, 3)))):
        assert (location.verdict, location.culprits) == (Verdict.UNKNOWN, ())
        assert [note.kind for note in location.notes] == ["unseen_waits"]


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_where_kernels_wait_by_themselves_time_on_gpus_accuses_nobody(phase: str) -> None:
    hidden = ("DeepEP", "torch's symmetric memory")
    location = locate(job(slow=[dict(rank=1, phase=phase, by=0.1)], hidden_by=hidden))
    assert (location.verdict, location.culprits) == (Verdict.UNKNOWN, ())
    (note,) = (note for note in location.notes if note.kind == "hidden_waits")
    assert note.ranks == (1,) and "kernels of DeepEP and torch's symmetric memory wait" in note.text
    assert locate(job(hidden_by=hidden)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("phase", ["input", "between_steps"])
def test_where_kernels_wait_by_themselves_what_the_host_does_is_compared(phase: str) -> None:
    location = locate(job(slow=[dict(rank=1, phase=phase, by=0.1)], hidden_by=("NVSHMEM",)))
    assert location.verdict is Verdict.FAIL
    assert [(culprit.ranks, culprit.phase) for culprit in location.culprits] == [((1,), phase)]


@pytest.mark.parametrize("phase", PHASES[:4])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_the_slow_rank_and_its_phase_are_named(ranks: int, phase: str) -> None:
    location = locate(job(ranks, slow=[dict(rank=ranks - 1, phase=phase, by=0.05)]))
    assert location.verdict is Verdict.FAIL
    assert [(culprit.ranks, culprit.phase) for culprit in location.culprits] == [((ranks - 1,), phase)]
    culprit = location.culprits[0]
    assert culprit.kind == ("slow_input" if phase == "input" else "slow_compute")
    assert culprit.node == f"n{(ranks - 1) // 2}"
    assert culprit.recoverable_ratio == pytest.approx(0.05 / 0.245, abs=0.05)
    assert location.slowdown_ratio == pytest.approx(0.245 / 0.195, abs=0.06)
    assert culprit.persistence == "persistent" and culprit.confidence > (0.9 if ranks > 2 else 0.85)


@given(seed=st.integers(0, 10_000), ranks=st.integers(2, 32), noise=st.floats(0.0, 0.15))
@example(seed=441, ranks=24, noise=0.09375)  # a rank, now and then slow by chance
@example(seed=1240, ranks=24, noise=0.140625)  # a machine of two ranks, slow by chance in 18 steps
@settings(max_examples=60, deadline=None)
def test_a_healthy_job_has_no_culprit(seed: int, ranks: int, noise: float) -> None:
    location = locate(job(ranks, noise=noise, seed=seed))
    assert location.verdict is Verdict.OK and location.culprits == ()


def test_a_slowdown_that_is_over_is_accused_of_what_it_cost() -> None:
    location = locate(job(slow=[dict(rank=0, phase="forward", by=0.1, since=10, until=40)]))
    (culprit,) = location.culprits
    assert (culprit.ranks, culprit.since_step) == (
        (0,),
        10,
    ) and "in 30 of the 30 steps until step 39, and not since" in culprit.evidence[-1]


@pytest.mark.parametrize("since", [57, 59])
def test_one_bad_moment_is_not_accused(since: int) -> None:
    location = locate(job(slow=[dict(rank=0, phase="forward", by=0.5, since=since)]))
    assert location.culprits == ()


def test_a_moment_accuses_nobody() -> None:
    disturbed = job(2, steps=40, slow=[dict(rank=0, phase="backward", by=0.05, since=28)])
    location = locate(scaled(disturbed, 0.05))  # 12 steps of 12 ms
    assert (location.verdict, location.culprits, location.notes) == (Verdict.OK, (), ())


@pytest.mark.parametrize("steps", [30, 128])
def test_a_job_that_was_slow_for_its_whole_short_life_is_not_called_healthy(steps: int) -> None:
    location = locate(scaled(job(4, steps=steps, slow=[dict(rank=1, phase="input", by=0.09)]), 0.01))
    assert location.verdict is Verdict.UNKNOWN and location.culprits == ()
    (note,) = location.notes
    assert (note.kind, note.ranks) == ("slow_in_few_steps", (1,)) and "steps like these would decide" in note.text


def test_steps_however_tiny_are_a_verdict_when_they_are_many() -> None:
    location = locate(scaled(job(4, steps=2000, slow=[dict(rank=2, phase="forward", by=0.05)]), 0.01))
    assert [culprit.ranks for culprit in location.culprits] == [(2,)]


def test_too_few_steps_are_no_verdict() -> None:
    location = locate(job(steps=6, slow=[dict(rank=0, phase="forward", by=0.5)]))
    assert location.verdict is Verdict.UNKNOWN
    assert [note.kind for note in location.notes] == ["too_few_steps"]


def test_a_hang_in_the_first_steps_is_told_by_the_longest_step_so_far() -> None:
    """Three steps of 0.2 s: who has waited for 5 s does not take part in a fourth."""
    beat = BeatRow(0.5, 1.0, "on", (LaneProgress("all_reduce", "dp:0-3", 9, 8),), ())
    inside = RankState("running", 2, "backward", InFlight("all_reduce", "dp:0-3", 9, 5.0), beat=beat)
    late = structs.replace(beat, lanes=(LaneProgress("all_reduce", "dp:0-3", 8, 8),))
    states = (inside, RankState("running", 2, "forward", None, beat=late), inside, inside)
    location = locate(job(steps=3, states=states))
    assert location.verdict is Verdict.UNKNOWN
    assert [note.ranks for note in location.notes if note.kind == "not_arrived"] == [(1,)]
    unknown = np.full((0, 4), np.nan)
    before_any = dict(steps=0, step_seconds=unknown, waited_seconds=unknown, states=states)
    assert not [note for note in locate(job(**before_any)).notes if note.kind == "not_arrived"]


def test_one_rank_alone_is_no_verdict_and_the_reason_is_not_its_steps() -> None:
    location = locate(job(ranks=1))
    assert location.verdict is Verdict.UNKNOWN
    assert [note.kind for note in location.notes] == ["too_few_ranks"]


def test_no_ranks_are_no_verdict() -> None:
    assert locate(with_ranks(job(2, steps=0), 0)).verdict is Verdict.UNKNOWN


def with_ranks(timings: JobTimings, count: int) -> JobTimings:
    """The first ranks of the job alone."""
    of_ranks = {name: getattr(timings, name)[:count] for name in ("ranks", "nodes", "gpus", "states")}
    times = ("step_seconds", "phase_seconds", "waited_seconds")
    return dataclasses.replace(timings, **of_ranks, **{name: getattr(timings, name)[:, :count] for name in times})


def test_a_job_whose_slow_rank_is_missing_is_not_called_healthy() -> None:
    whole = job(8, slow=[dict(rank=7, phase="forward", by=0.1)])
    location = locate(with_ranks(whole, 7))
    assert location.verdict is Verdict.UNKNOWN and location.culprits == ()
    assert [(note.kind, note.ranks) for note in location.notes] == [("partial", (7,)), ("unseen_ranks", ())]


@pytest.mark.parametrize("known", [0, 4])
@pytest.mark.parametrize(("waits", "verdict"), [(0.3, Verdict.UNKNOWN), (0.0, Verdict.OK)])
def test_a_rank_without_steps_that_the_others_may_wait_for(waits: float, verdict: Verdict, known: int) -> None:
    """As one that plays for others to learn from: it takes part in their collectives, and trains nothing. Or the
    records of most of its steps are lost."""
    whole = job(4)
    seconds, phases, waited = (np.array(it) for it in (whole.step_seconds, whole.phase_seconds, whole.waited_seconds))
    waited[:] = waits * seconds
    phases[:] = (seconds - waited)[:, :, None] * (phases / phases.sum(axis=2)[:, :, None])
    lost = len(seconds) - known
    seconds[:lost, 0] = phases[:lost, 0] = waited[:lost, 0] = np.nan
    fields = {"step_seconds": seconds, "phase_seconds": phases, "waited_seconds": waited}
    location = locate(JobTimings(**{**vars(whole), **fields}))
    assert location.verdict is verdict and location.culprits == ()
    assert [(note.kind, note.ranks) for note in location.notes] == [("unseen_ranks", (0,))] * (
        verdict is not Verdict.OK
    )


def test_gaps_in_the_timings_do_not_hide_the_culprit() -> None:
    timings = job(8, slow=[dict(rank=3, phase="backward", by=0.1)])
    hidden = np.random.default_rng(1).random((60, 8)) < 0.2
    for values in (timings.step_seconds, timings.waited_seconds, timings.phase_seconds):
        values[hidden] = np.nan
    assert [culprit.ranks for culprit in locate(timings).culprits] == [(3,)]


def test_the_findings_of_its_node_stand_beside_the_culprit_but_what_all_nodes_have() -> None:
    findings = {"n0": NodeFindings(("CLOCK_SKEW",)), "n1": NodeFindings(("CLOCK_SKEW", "GPU_THROTTLED"))}
    location = locate(job(slow=[dict(rank=2, phase="forward", by=0.1)], findings_by_node=findings))
    assert location.culprits[0].findings == ("GPU_THROTTLED",)


def test_a_rank_that_died_is_the_culprit_and_those_that_waited_for_it_are_not() -> None:
    waiting = RankState("died", 58, "backward", InFlight("all_reduce", "dp:0-3", 7, 2.0))
    dead = RankState("died", 58, "forward", None)
    location = locate(job(states=(waiting, waiting, dead, RUNNING)))
    assert location.verdict is Verdict.FAIL
    assert [(culprit.kind, culprit.ranks, culprit.since_step) for culprit in location.culprits] == [("dead", (2,), 59)]
    assert {note.ranks for note in location.notes} == {(2,), (0, 1)}


def test_a_rank_that_was_slow_and_then_died_is_told_once() -> None:
    slow = job(slow=[dict(rank=2, phase="forward", by=0.1)])
    gone = RankState("died", 59, None, None, end=RankEnd(1.0, exit_code=1, exception="ValueError"))
    states = tuple(gone if rank == 2 else state for rank, state in enumerate(slow.states))
    (culprit,) = locate(dataclasses.replace(slow, states=states)).culprits
    assert (culprit.kind, culprit.ranks) == ("dead", (2,))
    assert culprit.evidence[-1] == "before that it was slow in forward"


def test_a_job_that_was_ended_from_outside_has_no_culprit() -> None:
    location = locate(job(states=(RankState("died", 58, "forward", None),) * 4))
    assert location.culprits == () and location.verdict == "unknown"
    assert [note.kind for note in location.notes] == ["first_unseen", "ended"], "one may have died of itself"


def test_many_ranks_and_many_slow_ones_are_judged_as_few_are() -> None:
    """More ranks than one block, and slow ones on both sides of the seam between two blocks."""
    places = (3, 8191, 8192, 8999)
    slow = [dict(rank=rank, phase="forward", by=0.04 + 0.01 * number) for number, rank in enumerate(places)]
    location = locate(job(9000, steps=32, slow=slow))
    assert [culprit.ranks[0] for culprit in location.culprits] == list(reversed(places))
    assert location.culprits[0].recoverable_ratio > 0 and len(location.culprits[0].victims) == 64
