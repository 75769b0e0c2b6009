"""Who is slow among peers: small slowdowns, machines, positions, and what accuses nobody."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.timings import job, scaled

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict


def named(timings: JobTimings) -> list[tuple[str, tuple[int, ...]]]:
    return [(culprit.kind, culprit.ranks) for culprit in locate(timings).culprits]


@given(seed=st.integers(0, 10_000), rank=st.integers(0, 63), share=st.sampled_from((0.06, 0.1, 0.2)))
@settings(max_examples=30, deadline=None)
def test_a_slowdown_of_six_percent_is_found_within_twenty_steps(seed: int, rank: int, share: float) -> None:
    assert named(job(seed=seed, slow=[([rank], share)])) == [("slow_compute", (rank,))]


def test_the_surer_the_larger_the_slowdown() -> None:
    sure = [locate(job(slow=[([9], share)])).culprits[0].confidence for share in (0.04, 0.045, 0.06)]
    assert sure[0] < sure[1] < sure[2] <= 0.99


STAGES = np.arange(64) // 16
PIPELINE = dict(load=np.array([1.0, 1.15, 1.0, 1.4])[STAGES], positions=STAGES.astype(np.int32))


@given(seed=st.integers(0, 10_000), rank=st.integers(0, 63))
@settings(max_examples=20, deadline=None)
def test_a_rank_is_compared_with_its_own_stage(seed: int, rank: int) -> None:
    """Slow enough that the longest stage waits for it, too."""
    assert named(job(seed=seed, slow=[([rank], 0.5)], **PIPELINE)) == [("slow_compute", (rank,))]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("phase", ["input", "forward", "backward"])
def test_a_slow_machine_is_one_culprit(share: float, phase: str) -> None:
    columns = tuple(range(24, 32))
    location = locate(job(slow=[(columns, share)], phase=phase))
    assert [(culprit.kind, culprit.node, culprit.ranks) for culprit in location.culprits] == [
        ("slow_host", "n3", columns)
    ]
    assert location.culprits[0].phase == phase


def test_ranks_of_a_slow_machine_that_are_slow_in_unequal_measure_are_one_culprit() -> None:
    slow = [([rank], share) for rank, share in zip(range(24, 32), np.linspace(0.06, 0.14, 8), strict=True)]
    assert named(job(slow=slow)) == [("slow_host", tuple(range(24, 32)))]


def test_a_machine_whose_input_is_slow_is_one_culprit_though_some_of_its_ranks_load_none() -> None:
    """Every second rank is the first stage of a pipeline, and loads its input; the others have none."""
    timings = job(slow=[((24, 26, 28, 30), 0.1)], phase="input", positions=(np.arange(64) % 2).astype(np.int32))
    timings.phase_seconds[:, 1::2, 0] = 0.0
    (culprit,) = locate(timings).culprits
    assert (culprit.kind, culprit.node, culprit.ranks) == ("slow_host", "n3", (24, 26, 28, 30))
    assert culprit.phase == "input"
    assert culprit.evidence[0] == "most of the 4 ranks of the machine with this work are slow"


def test_a_machine_of_which_only_some_ranks_pass_the_threshold_is_one_culprit() -> None:
    slow = [([24, 27], 0.04), ([25, 26, 28, 29, 30, 31], 0.023)]
    assert named(job(steps=40, slow=slow)) == [("slow_host", tuple(range(24, 32)))]


def test_of_two_machines_the_one_that_becomes_slower_in_mid_run_is_the_culprit() -> None:
    """The other's ranks are compared with it, so that theirs is less than nothing from then on."""
    timings = job(16, 78, slow=[(tuple(range(8)), 0.08)], since=39)
    assert named(timings) == [("slow_host", tuple(range(8)))]


def test_a_rank_that_is_a_little_slower_is_not_accused_of_noise_besides() -> None:
    """In some of these jobs the second half of its steps alone would pass for 2.5 %, by five standard errors."""
    accused = [seed for seed in range(60) if named(job(32, 38, seed=seed, slow=[([15], 0.016)]))]
    assert len(accused) <= 2, accused


def test_one_rank_that_is_very_slow_does_not_accuse_its_machine() -> None:
    assert named(job(8, per_node=2, slow=[([3], 0.5)])) == [("slow_compute", (3,))]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_a_small_slowdown_does_not_hide_behind_a_large_one(seed: int) -> None:
    """Also among four peers, of which two are slow."""
    slow = [([5], 0.4), ([13], 0.1)]
    assert sorted(named(job(seed=seed, slow=slow))) == [("slow_compute", (5,)), ("slow_compute", (13,))]
    few = dict(positions=(np.arange(16) // 4).astype(np.int32), per_node=4)
    assert sorted(named(job(16, seed=seed, slow=[([5], 0.4), ([7], 0.1)], **few))) == [
        ("slow_compute", (5,)),
        ("slow_compute", (7,)),
    ]


@pytest.mark.parametrize("share", [0.08, 0.2])
def test_the_onset_is_the_step_in_which_it_began(share: float) -> None:
    (culprit,) = locate(job(steps=100, slow=[([7], share)], since=70, first_step=500)).culprits
    assert culprit.ranks == (7,) and culprit.since_step is not None and abs(culprit.since_step - 570) <= 2


def test_of_two_equal_culprits_each_is_worth_half_of_what_both_cost() -> None:
    location = locate(job(slow=[([5], 0.2), ([13], 0.2)]))
    worth = [culprit.recoverable_ratio or 0.0 for culprit in location.culprits]
    assert worth == pytest.approx([0.08, 0.08], abs=0.02)
    assert location.slowdown_ratio == pytest.approx(1.2, abs=0.04)


def test_time_of_no_phase_accuses_nobody_where_phases_are_known() -> None:
    """Rank 0 writes its log, or waits in a way that no record tells of."""
    assert named(job(slow=[([0], 0.2)], phase="other")) == []


def test_a_machine_whose_ranks_lose_time_outside_of_their_phases_leaves_no_job_healthy() -> None:
    """What its CPUs do between the phases; the other ranks wait for it in collectives. Half of a stage is its own."""
    n3 = tuple(range(24, 32))
    location = locate(job(32, slow=[(n3, 0.2)], phase="other", positions=np.arange(32, dtype=np.int32) // 16))
    assert location.verdict is Verdict.UNKNOWN and location.culprits == ()
    assert [(note.kind, note.ranks, note.node) for note in location.notes] == [("unnamed_time", n3, "n3")]
    nobody_waits = job(32, slow=[(n3, 0.2)], phase="other")
    nobody_waits.waited_seconds[:] = 0.01
    assert locate(nobody_waits).verdict is Verdict.OK, "it may be a wait that no record tells of"


@given(seed=st.integers(0, 10_000), factor=st.sampled_from((0.3, 7.0, 1000.0)))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_time_changes_no_verdict(seed: int, factor: float) -> None:
    timings = job(seed=seed, steps=128, slow=[([11], 0.07)])
    before, after = locate(timings), locate(scaled(timings, factor))
    assert [(each.ranks, each.since_step, each.phase) for each in after.culprits] == [
        (each.ranks, each.since_step, each.phase) for each in before.culprits
    ]
    assert after.slowdown_ratio == before.slowdown_ratio


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_ranks_numbers_change_no_verdict(seed: int) -> None:
    order = np.random.default_rng(seed).permutation(64)
    timings = job(seed=seed, slow=[([17], 0.5)], **PIPELINE)
    assert timings.positions is not None
    moved = dataclasses.replace(
        timings,
        step_seconds=timings.step_seconds[:, order],
        phase_seconds=timings.phase_seconds[:, order],
        waited_seconds=timings.waited_seconds[:, order],
        positions=timings.positions[order],
        nodes=tuple(timings.nodes[place] for place in order),
    )
    assert named(moved) == [("slow_compute", (int(np.flatnonzero(order == 17)[0]),))]


def bursts(seed: int, rank: int, steps: int, ranks: int = 32, positions: np.ndarray | None = None) -> JobTimings:
    """A job of which one rank takes longer in each step, now by a tenth of it and now as long again."""
    options = {} if positions is None else {"positions": positions}
    timings = job(ranks, steps, seed=seed, **options)
    longer = np.random.default_rng(seed).exponential(0.4, steps).clip(0.12, 1.0) * timings.step_seconds[0, 0]
    timings.phase_seconds[:, rank, PHASES.index("forward")] += longer
    timings.step_seconds[:] += longer[:, None]
    timings.waited_seconds[:, np.arange(ranks) != rank] += longer[:, None]
    return timings


def test_what_comes_in_every_step_is_no_noise_however_much_it_varies() -> None:
    found = [[each.ranks for each in locate(bursts(seed, seed, steps=14)).culprits] for seed in range(32)]
    right = [each == [(rank,)] for rank, each in enumerate(found)]
    assert sum(right) >= 30 and not any(each and each != [(rank,)] for rank, each in enumerate(found)), found


@pytest.mark.parametrize(("late", "named"), [(range(6, 20), True), (range(12, 20), False)])
def test_a_rank_that_is_late_in_most_steps_is_named_however_much_that_varies(late: range, named: bool) -> None:
    """As a data loader with moments in which it is fast."""
    timings = job(32, 20)
    more = np.zeros(20)
    more[list(late)] = np.random.default_rng(7).uniform(0.05, 0.5, len(late)) * timings.step_seconds[:, 9][list(late)]
    order = np.random.default_rng(8).permutation(20)
    timings.phase_seconds[:, 9, PHASES.index("input")] += more[order]
    timings.step_seconds[:] += more[order, None]
    timings.waited_seconds[:, np.arange(32) != 9] += more[order, None]
    persistent = [each for each in locate(timings).culprits if each.persistence == "persistent"]
    assert [each.ranks for each in persistent] == [(9,)] * named


def test_a_recording_of_thousands_of_steps_is_judged() -> None:
    """Of a rank that is late in six of ten of them, by as much as one of its own standard deviations."""
    steps = 3000
    timings = job(8, steps)
    generator = np.random.default_rng(3)
    more = np.where(generator.random(steps) < 0.6, generator.uniform(0.1, 0.9, steps), 0.0) * timings.step_seconds[:, 3]
    timings.phase_seconds[:, 3, PHASES.index("input")] += more
    assert [culprit.ranks for culprit in locate(timings).culprits] == [(3,)]


def test_of_two_peers_the_noise_of_others_tells_which_one_varies() -> None:
    """Their excesses are one series and its mirror image."""
    positions = (np.arange(32) // 2).astype(np.int32)
    (culprit,) = locate(bursts(3, 9, steps=14, positions=positions)).culprits
    assert culprit.ranks == (9,)


@pytest.mark.parametrize(("lost", "named"), [(3, True), (5, True), (6, False)])
def test_a_slow_rank_of_which_most_records_are_lost_is_not_named(lost: int, named: bool) -> None:
    timings = job(32, 13, slow=[((9,), 0.4)])
    timings.phase_seconds[np.arange(3, 3 + lost), 9] = np.nan
    assert [culprit.ranks for culprit in locate(timings).culprits] == [(9,)] * named
