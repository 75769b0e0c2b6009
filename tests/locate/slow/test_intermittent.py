"""Ranks that are slow now and then: named with how often, and not confused with chance, bursts or rank 0's own work."""

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

STEP = 0.315  # seconds, about


def disturbed(
    steps: int,
    hits: dict[int, np.ndarray],
    seconds: float,
    seed: int = 0,
    phase: int = 1,
    ranks: int = 32,
    per_node: int = 8,
) -> JobTimings:
    timings = job(ranks, steps, seed=seed, per_node=per_node)
    for rank, of_rank in hits.items():
        timings.phase_seconds[of_rank, rank, phase] += seconds
        timings.step_seconds[of_rank] += seconds
    return timings


@given(seed=st.integers(0, 9999), rank=st.integers(0, 31), every=st.sampled_from((3, 5, 7)))
@settings(max_examples=30, deadline=None)
def test_a_rank_that_is_slow_every_few_steps_is_named_with_how_often(seed: int, rank: int, every: int) -> None:
    location = locate(disturbed(62, {rank: np.arange(2, 62, every)}, 0.3 * STEP, seed))
    (culprit,) = location.culprits
    assert (culprit.ranks, culprit.persistence, culprit.phase) == ((rank,), "intermittent", "forward")
    hits = len(range(2, 62, every))  # of the 60 after the recording's first two
    told = [f"({count} of 60)" for count in range(hits, hits + 7)]  # by chance some more, a tenth at most
    assert any(text in line for line in culprit.evidence for text in told), culprit.evidence
    assert culprit.recoverable_ratio == pytest.approx(0.3 * hits / 60, abs=0.03)


def test_a_rank_with_a_habit_is_named_at_the_end_of_one_of_its_spells_too() -> None:
    """The last spell alone would be a moment like those before."""
    hits = np.flatnonzero((np.arange(120) % 20 >= 10) & (np.arange(120) % 20 < 16))
    hits = np.append(hits[hits < 111], np.arange(111, 120))
    (culprit,) = locate(disturbed(120, {9: hits}, 0.3 * STEP, seed=1, ranks=10, per_node=5)).culprits
    assert (culprit.ranks, culprit.persistence) == ((9,), "intermittent")


LONG_SPELLS = np.r_[4:9, 26:31, 48:53]


def test_a_rank_that_is_slow_in_three_long_spells_is_named() -> None:
    """Of 64 ranks three are too few to be no chance by their number alone."""
    (culprit,) = locate(disturbed(60, {38: LONG_SPELLS}, 0.4 * STEP, ranks=64)).culprits
    assert (culprit.ranks, culprit.persistence) == ((38,), "intermittent")


@pytest.mark.parametrize(
    "hits",
    [
        pytest.param({38: np.r_[4:6, 24:26, 48:50], 5: np.r_[14:16, 34:36]}, id="another has some as well"),
        pytest.param({38: np.r_[4:6, 48:50]}, id="short ones"),
        pytest.param({38: np.r_[4:9]}, id="one"),
    ],
)
def test_fewer_and_shorter_spells_accuse_nobody(hits: dict[int, np.ndarray]) -> None:
    assert not locate(disturbed(60, hits, 0.4 * STEP, ranks=64)).culprits


def test_a_habit_that_the_noise_of_single_steps_hides_is_mostly_named() -> None:
    """Each third step is 12 % longer, in jobs whose steps differ by 2.5 % from rank to rank."""
    right = []
    for seed in range(20):
        timings = disturbed(240, {9: np.arange(1, 240, 3)}, 0.12 * STEP, seed)
        timings.phase_seconds[:] *= np.random.default_rng(seed).normal(1, 0.02, (240, 32))[:, :, None]
        right.append([each.ranks for each in locate(timings).culprits] == [(9,)])
    assert sum(right) >= 16, right


def test_a_regular_habit_that_costs_less_than_a_hundredth_accuses_nobody() -> None:
    """A garbage collection in every seventh step, say, of 5 % of it: looking for it costs more."""
    assert locate(disturbed(400, {9: np.arange(3, 400, 7)}, 0.055 * STEP)).verdict is Verdict.OK


def test_what_a_rank_does_in_one_phase_in_place_of_another_is_no_habit() -> None:
    timings = disturbed(80, {9: np.arange(3, 80, 7)}, 0.06 * STEP)
    timings.phase_seconds[3:80:7, 9, 2] -= 0.06 * STEP
    assert locate(timings).culprits == ()


@given(seed=st.integers(0, 9999))
@settings(max_examples=30, deadline=None)
def test_hiccups_of_all_ranks_accuse_nobody(seed: int) -> None:
    struck = np.random.default_rng(seed).random((100, 32)) < 0.03
    timings = disturbed(100, {rank: struck[:, rank] for rank in range(32)}, 0.3 * STEP, seed)
    assert locate(timings).verdict is Verdict.OK


def test_one_disturbance_of_several_steps_accuses_nobody() -> None:
    assert locate(disturbed(60, {9: np.r_[10:18]}, 0.3 * STEP)).culprits == ()


def test_of_short_steps_a_few_bad_ones_are_no_habit() -> None:
    assert locate(scaled(disturbed(40, {9: np.arange(2, 40, 5)}, 0.3 * STEP), 0.1)).culprits == ()


def test_a_recording_of_three_seconds_shows_a_habit_that_a_live_job_has_to_go_on_showing() -> None:
    recorded = scaled(disturbed(40, {9: np.arange(2, 40, 5)}, 0.3 * STEP), 0.25)
    assert [culprit.ranks for culprit in locate(recorded).culprits] == [(9,)]
    running = tuple(state._replace(state="running") for state in recorded.states)
    live = dataclasses.replace(recorded, live=True, states=running)
    assert locate(live).culprits == ()


def test_what_rank_zero_does_now_and_then_is_noted_where_no_phase_says_what() -> None:
    timings = disturbed(60, {0: np.arange(5, 60, 10)}, 0.3 * STEP)
    timings.phase_seconds[:, :, -1] = timings.phase_seconds.sum(axis=2)
    timings.phase_seconds[:, :, :-1] = 0.0
    location = locate(timings)
    assert location.culprits == () and [(note.kind, note.ranks) for note in location.notes] == [("rank_zero", (0,))]


def test_checkpoints_in_which_many_ranks_are_late_hide_no_habit() -> None:
    """Two checkpoints, in which two ranks in five are late, some of each machine; rank 19 pauses five times."""
    timings = disturbed(38, {19: np.array([3, 8, 13, 22, 32])}, 0.8 * STEP, ranks=64)
    late = np.arange(64)[np.random.default_rng(5).random(64) < 0.4]
    for step in (17, 36):
        timings.phase_seconds[step, late, 1] += 1.5 * STEP
        timings.step_seconds[step] += 10 * STEP
    (culprit,) = locate(timings).culprits
    assert (culprit.ranks, culprit.persistence) == ((19,), "intermittent")


def test_a_gpu_that_is_a_hundredth_slower_has_no_habit() -> None:
    """Of these ranks' steps with 2.5 standard deviations above the others', 5 of 8 are rank 14's."""
    assert [culprit.ranks for culprit in locate(job(seed=0, slow=[([0], 0.06)])).culprits] == [(0,)]


FOUR_SPELLS = np.r_[3:5, 9:12, 20:22, 27:29]


def test_four_spells_that_cost_a_tenth_of_the_time_are_no_chance_in_a_small_job() -> None:
    (culprit,) = locate(disturbed(32, {5: FOUR_SPELLS}, STEP, ranks=16)).culprits
    assert (culprit.ranks, culprit.persistence) == ((5,), "intermittent")


def test_a_machine_that_is_slow_in_four_spells_is_named_as_a_whole() -> None:
    """Among 64 ranks its eight are so many that they would seem to be what is usual."""
    timings = disturbed(32, dict.fromkeys(range(8, 16), FOUR_SPELLS), STEP, ranks=64)
    timings.step_seconds[FOUR_SPELLS] -= 7 * STEP
    (culprit,) = locate(timings).culprits
    assert culprit.ranks == tuple(range(8, 16)) and culprit.node == "n1"


def test_a_rank_whose_few_slow_steps_cost_much_leaves_no_job_healthy() -> None:
    location = locate(disturbed(32, {5: np.r_[3:4, 7:9]}, 2 * STEP))
    assert not location.culprits and location.verdict is Verdict.UNKNOWN
    (note,) = (note for note in location.notes if note.kind == "slow_in_few_steps")
    assert note.ranks == (5,) and "rank 5 was slower than the others in 3 steps between 5 and 10" in note.text


@pytest.mark.parametrize(
    ("hits", "seconds"), [(np.r_[7:8], 3 * STEP), (np.r_[3:4, 7:9], 0.3 * STEP)], ids=["once", "at little cost"]
)
def test_else_few_slow_steps_say_nothing(hits: np.ndarray, seconds: float) -> None:
    assert locate(disturbed(32, {5: hits}, seconds)).verdict is Verdict.OK


@pytest.mark.parametrize(("phase", "told"), [(1, "in forward"), (4, "between steps")])
def test_what_others_waited_for_in_a_small_job_is_told_with_its_phase(phase: int, told: str) -> None:
    """Two long steps of three ranks' noise prove nothing, and cost a tenth of the time."""
    location = locate(disturbed(90, {1: np.r_[30, 60]}, 8 * STEP, phase=phase, ranks=3))
    (note,) = (note for note in location.notes if note.kind == "slow_in_few_steps")
    assert location.verdict is Verdict.UNKNOWN and note.ranks == (1,) and told in note.text


def test_what_one_rank_alone_evaluates_is_told_though_it_does_so_twice() -> None:
    location = locate(disturbed(90, {0: np.r_[30, 60]}, 8 * STEP, phase=PHASES.index("evaluation"), ranks=3))
    (note,) = location.notes
    assert (note.kind, note.ranks) == ("uneven_work", (0,)) and "evaluation" in note.text


def test_two_ranks_that_are_held_up_as_long_are_no_cause_of_doubt() -> None:
    hits = {1: np.r_[30, 60], 2: np.r_[20, 70]}
    assert locate(disturbed(90, hits, 8 * STEP, ranks=3)).verdict is Verdict.OK


AMID = np.r_[20:23]


def test_a_replaced_rank_that_compiles_amid_the_job_is_a_warm_up() -> None:
    location = locate(disturbed(40, {5: AMID}, 20 * STEP))
    assert location.verdict is Verdict.OK
    (note,) = (note for note in location.notes if note.kind == "stall")
    assert note.ranks == (5,) and "steps 22 to 24" in note.text


@pytest.mark.parametrize(
    ("steps", "hits", "phase"),
    [(40, AMID, 0), (40, np.r_[20:24], 1), (40, np.r_[20:22, 24:25], 1), (29, AMID, 1)],
    ids=["its loader", "four steps", "with a pause", "perhaps not over"],
)
def test_else_so_much_time_in_few_steps_is_no_warm_up(steps: int, hits: np.ndarray, phase: int) -> None:
    assert locate(disturbed(steps, {5: hits}, 20 * STEP, phase=phase)).verdict is not Verdict.OK


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [2, 3])
def test_rollouts_that_one_rank_of_two_or_three_is_slow_at_are_its_habit(ranks: int, seed: int) -> None:
    hits = np.arange(4, 124, 5)
    (culprit,) = locate(disturbed(124, {1: hits}, 6 * STEP, seed, ranks=ranks)).culprits
    assert (culprit.ranks, culprit.persistence) == ((1,), "intermittent")


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_of_which_either_stalls_in_single_steps_is_not_accused(seed: int) -> None:
    hits = np.random.default_rng(seed).permutation(np.arange(4, 124, 5))
    assert not locate(disturbed(124, {0: hits[:12], 1: hits[12:]}, 6 * STEP, seed, ranks=2)).culprits


def test_one_long_step_makes_no_culprit_of_a_rank_that_is_hardly_slower() -> None:
    timings = job(32, 98, slow=[([18], 0.008)])
    timings.phase_seconds[72, 18, 0] += 1.8 * STEP
    timings.step_seconds[72] += 1.8 * STEP
    assert locate(timings).verdict is Verdict.OK


def test_checkpoints_that_rank_zero_writes_alone_are_its_work_however_few() -> None:
    timings = disturbed(180, {0: np.array([60, 120])}, 9 * STEP, phase=PHASES.index("checkpoint"), ranks=16)
    location = locate(timings)
    assert location.verdict is Verdict.OK
    assert [note.ranks for note in location.notes if note.kind == "uneven_work"] == [(0,)]
