"""Moments of other work on a machine, in which a rank is held up and after which it is not: they accuse nobody."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.timings import job, with_phases

from laggard.locate.job_timings import JobTimings
from laggard.locate.slow.significance import STANDARD_ERRORS, slowdown, student
from laggard.locate.verdict import locate
from laggard.model import Verdict

STEP = 0.02  # seconds


def live(steps: int, held_up: list[tuple[int, int]], ranks: int = 2, seed: int = 0) -> JobTimings:
    """A watched job with steps of about 0.02 s, the first rank of which is held up by 40 % from step to step."""
    timings = job(ranks, steps=steps, seed=seed)
    scale = STEP / float(np.median(timings.step_seconds))
    phases = timings.phase_seconds * scale
    for first, last in held_up:
        phases[first:last, 0, 2] += 0.4 * STEP
    return dataclasses.replace(with_phases(timings, phases, 0.002), live=True)


def test_a_live_rank_that_is_held_up_for_three_seconds_is_noted_and_not_accused() -> None:
    location = locate(live(1000, [(890, 1000)]))
    assert location.verdict is Verdict.OK and not location.culprits
    assert [note.kind for note in location.notes] == ["brief"]


def test_the_last_verdict_on_a_job_that_has_ended_is_drawn_once() -> None:
    timings = live(1000, [(890, 1000)])
    over = tuple(state._replace(state="finished") for state in timings.states)
    assert [each.ranks for each in locate(dataclasses.replace(timings, states=over)).culprits] == [(0,)]


def test_a_live_rank_that_stays_slow_is_accused() -> None:
    (culprit,) = locate(live(1000, [(700, 1000)])).culprits
    assert culprit.ranks == (0,) and culprit.phase == "backward"
    assert culprit.since_step == pytest.approx(702, abs=5)


def test_a_rank_that_has_been_held_up_before_must_be_slow_for_longer_than_that() -> None:
    before = [(200, 420)]  # 4 to 5 s
    again = locate(live(1000, [*before, (760, 1000)]))
    assert not again.culprits and [note.kind for note in again.notes] == ["brief"], "as long as the moment before"
    assert [each.ranks for each in locate(live(1000, [(760, 1000)])).culprits] == [(0,)], "it was the first"
    assert [each.ranks for each in locate(live(1000, [*before, (440, 1000)])).culprits] == [(0,)], "it outlasts that"


def slow_noise(seed: int, steps: int = 128) -> np.ndarray:
    """Noise of standard deviation 1 in which some twenty neighbouring steps are alike, as on a machine whose other work
    comes and goes."""
    generator = np.random.default_rng(seed)
    values = np.zeros(steps + 200)
    for place in range(1, len(values)):
        values[place] = 0.95 * values[place - 1] + generator.normal(0, (1 - 0.95**2) ** 0.5)
    return values[200:]


def test_noise_in_which_neighbours_are_alike_is_no_slowdown() -> None:
    duration = np.full(128, 10.0)
    peers = np.random.default_rng(0).normal(0, 1.0, (128, 1))
    found = [slowdown(slow_noise(seed), duration, peers, 0.0) for seed in range(200)]
    assert sum(each is not None for each in found) <= 10
    shuffled = [np.random.default_rng(seed).permutation(slow_noise(seed)) for seed in range(20)]
    slow = [each - np.median(each) + 1.0 for each in shuffled]
    assert sum(slowdown(each, duration, peers, 0.0) is not None for each in slow) >= 12, "found in independent steps"


def test_a_deviation_that_is_known_from_few_steps_takes_more_of_them() -> None:
    few, some, many = student(7), student(30), student(1e6)
    assert few > some > many == pytest.approx(STANDARD_ERRORS, rel=1e-3)
    assert student(30) == pytest.approx(6.25, rel=0.03)  # Student's t, 30 degrees, 2.87e-7


def test_clustered_episodes_are_one_moment_and_no_habit() -> None:
    every = [(place, place + 1) for place in range(20, 1000, 20)]
    (culprit,) = locate(live(1000, every)).culprits
    assert culprit.persistence == "intermittent" and culprit.ranks == (0,)
    clusters = [(place, place + 1) for begin in (100, 800) for place in range(begin, begin + 52, 2)]
    assert len(clusters) > len(every)
    assert not locate(live(1000, clusters)).culprits


@pytest.mark.parametrize(("first", "needed"), [(0, 10), (1, 9), (5, 8)])
def test_the_steps_of_the_warm_up_are_asked_for_where_they_are_part_of_the_recording(first: int, needed: int) -> None:
    (note,) = locate(job(4, 6, first_step=first)).notes
    assert (note.kind, note.text) == ("too_few_steps", f"6 steps seen, {needed} are needed for a verdict")


def moved(steps: int, seconds: float) -> JobTimings:
    """A job of eight ranks with steps of so many seconds: the first is slow in the first half, the second in the
    other."""
    timings = job(8, steps=steps)
    scale = seconds / float(np.median(timings.step_seconds))
    phases = timings.phase_seconds * scale
    phases[: steps // 2, 0, 2] += 0.2 * seconds
    phases[steps // 2 :, 1, 2] += 0.2 * seconds
    return with_phases(timings, phases, 0.002)


def test_a_fault_that_moved_to_another_rank_is_that_ranks_now() -> None:
    location = locate(moved(100, 1.0))
    assert [(it.kind, it.ranks) for it in location.culprits] == [("slow_compute", (1,))]


def test_what_moves_within_seconds_accuses_nobody() -> None:
    location = locate(moved(100, 0.05))
    assert not location.culprits and [note.kind for note in location.notes] == ["brief"]
