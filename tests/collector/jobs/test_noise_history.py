"""What a live job's earlier windows showed of its noise is kept, and no window counts twice."""

from __future__ import annotations

import dataclasses

import numpy as np
from support.timings import job

from laggard.collector.jobs.noise_history import MAX_WINDOWS, NoiseHistory
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate


def window(first_step: int, ranks: int = 8, steps: int = 128) -> JobTimings:
    return job(ranks, steps, seed=first_step, first_step=first_step)


def test_windows_that_overlap_count_once_and_others_add_up() -> None:
    history = NoiseHistory()
    history.take(window(0))
    once = history.blocks
    history.take(window(64))
    assert history.blocks == once
    for number in range(1, 4):
        history.take(window(128 * number))
    lengths = [each.length for each in history.blocks]
    assert max(lengths) > 128, "how windows differ is known too"
    assert history.blocks[5].freedom > once[5].freedom


def test_other_ranks_and_another_run_begin_anew() -> None:
    history = NoiseHistory()
    for number in range(4):
        history.take(window(128 * number))
    longest = max(each.length for each in history.blocks)
    history.take(window(1024, ranks=4))
    assert max(each.length for each in history.blocks) < longest
    history.take(window(0, ranks=4))
    assert max(each.length for each in history.blocks) < longest


def test_a_long_job_is_bounded_and_what_has_no_steps_is_passed_over() -> None:
    history = NoiseHistory()
    history.take(window(0, steps=4))
    history.take(window(0, ranks=1))
    assert history.blocks == ()
    for number in range(3 * MAX_WINDOWS):
        history.take(window(128 * number))
    assert max(each.length for each in history.blocks) <= 128 * MAX_WINDOWS


def test_two_ranks_of_a_live_job_are_told_apart_by_what_was_before() -> None:
    """Two ranks in much noise, of which one becomes slower: a window alone does not say whether noise lasts as long."""
    history = NoiseHistory()
    for number in range(12):
        history.take(noisy(128 * number, since=None))
    now = noisy(128 * 12, since=104)
    assert not locate(now).culprits
    (culprit,) = locate(dataclasses.replace(now, earlier_noise=history.blocks)).culprits
    assert culprit.ranks == (1,)


def noisy(first_step: int, since: int | None) -> JobTimings:
    made = job(2, 128, seed=first_step, first_step=first_step, live=True)
    made.phase_seconds[:] *= np.random.default_rng(first_step).normal(1, 0.02, (128, 2))[:, :, None]
    if since is not None:
        made.phase_seconds[since:, 1, 1] += 0.03
    return made
