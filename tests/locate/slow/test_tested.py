"""The one test: what costs and is no chance is accused, whatever memory the noise has; what noise shows is not."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.locate.medians import others_median
from laggard.locate.shares import MIN_COST
from laggard.locate.slow.noise import NO_SPREAD, Noise, Where, blocks_of, chance_of_moments
from laggard.locate.slow.tested import Judged, Part, Units, judge, parts_of, segment

STEPS, TRIALS = 128, 60
Floats = np.ndarray[Any, Any]


def lasting(rho: float, ranks: int, seed: int, steps: int = STEPS) -> Floats:
    """Noise of variance 1 that keeps rho of its value from step to step."""
    generator = np.random.default_rng(seed)
    found, state = np.empty((steps, ranks)), generator.normal(0, 1, ranks)
    for step in range(steps):
        state = rho * state + math.sqrt(1 - rho * rho) * generator.normal(0, 1, ranks)
        found[step] = state
    return found


def judged(busy: Floats, step_seconds: float = 1.0, live: bool = False, **options: Any) -> Judged:
    """What is said of ranks that are busy for so many seconds in each step."""
    ranks = busy.shape[1]
    excess = (busy - others_median(busy)) * step_seconds
    units = Units(excess, np.ones(ranks, np.bool_), **options)
    return judge(units, step_seconds * (busy.max(axis=1) + 0.05), live)


def slow(noise: Floats, share: float, since: int = 0, until: int = STEPS) -> Floats:
    """One second a step, and rank 1 that is slower by `share` of it."""
    busy = 1 + noise
    busy[since:until, 1] += share
    return busy


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("rho", "sd"), [(0.0, 0.004), (0.0, 0.05), (0.5, 0.05), (0.9, 0.02), (0.95, 0.02)])
def test_noise_accuses_nobody_whatever_its_memory(rho: float, sd: float, ranks: int, live: bool) -> None:
    accused = [seed for seed in range(40) if judged(1 + sd * lasting(rho, ranks, seed), live=live).slow]
    assert not accused


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_rank_with_more_noise_than_the_others_is_rarely_accused(rho: float, live: bool) -> None:
    deviations = np.array([0.06, *7 * [0.01]])
    jobs = (1 + deviations * lasting(rho, 8, seed) for seed in range(TRIALS))
    found = sum(bool(judged(busy, step_seconds=0.5, live=live).slow) for busy in jobs)
    assert found <= TRIALS // 8, f"{found} of {TRIALS}: by the others' noise alone it would be half"


def test_the_error_of_what_a_lone_rank_was_counts() -> None:
    found = 0
    for seed in range(TRIALS):
        own = 0.06 * lasting(0.0, 4, seed, 8 + STEPS)
        base, first = np.median(own[:8], axis=0), own[:8]
        errors = 1.4826 * np.median(np.abs(first - base), axis=0) * math.sqrt(math.pi / 2 / 8)
        units = Units(own[8:] - base, np.ones(4, np.bool_), errors=errors)
        found += bool(judge(units, np.ones(STEPS), False).slow)
    assert found <= TRIALS // 15, f"{found} of {TRIALS}"


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize(("rho", "sd", "share"), [(0.0, 0.01, 0.1), (0.5, 0.01, 0.1), (0.9, 0.01, 0.5)])
def test_a_slow_rank_is_found(rho: float, sd: float, share: float, ranks: int) -> None:
    for seed in range(5):
        found = judged(slow(sd * lasting(rho, ranks, seed), share)).slow
        assert [each.unit for each in found] == [1], seed
        assert found[0].level == pytest.approx(share / (1.05 + share), rel=0.1), "of a step"


@pytest.mark.parametrize(("since", "until"), [(0, 48), (32, 80), (96, 128)])
def test_what_was_for_a_part_of_the_time_is_found_with_what_it_cost(since: int, until: int) -> None:
    (found,) = judged(slow(0.01 * lasting(0.5, 8, 1), 0.2, since, until)).slow
    assert found.unit == 1 and found.cost == pytest.approx(0.2 * (until - since) / STEPS, rel=0.15)
    begin, end = segment((slow(np.zeros((STEPS, 8)), 0.2, since, until) - 1)[:, 1], found.level)
    assert (begin, end) == (since, until)


@pytest.mark.parametrize(("steps_each", "turns"), [(25, True), (1, False)])
def test_ranks_that_are_slow_by_turns_are_told_unless_it_is_for_moments(steps_each: int, turns: bool) -> None:
    """Steps of a tenth of a second: another of sixteen ranks is always a fifth slower, for so many steps."""
    order = np.random.default_rng(2).permutation(16)
    busy = 1 + 0.003 * lasting(0.0, 16, 1, 300)
    for step in range(300):
        busy[step, order[step // steps_each % 16]] += 0.2
    found = judged(busy, step_seconds=0.1)
    assert not found.slow and bool(found.turns.units) is turns
    assert not turns or len(found.turns.units) > 8 and 0.05 < found.turns.cost < 0.2


@pytest.mark.parametrize("live", [False, True])
def test_what_costs_less_than_a_hundredth_accuses_nobody(live: bool) -> None:
    noise = np.random.default_rng(1).normal(0, 1e-5, (STEPS, 8))
    assert not judged(slow(noise, 0.9 * MIN_COST), live=live).slow
    assert judged(slow(noise, 3 * MIN_COST), live=live).slow


def test_the_shorter_memory_the_sooner_it_is_known() -> None:
    """A rank that becomes 10 % slower, in noise of 2 %: after how many steps it is named at the latest."""
    needed = {}
    for rho in (0.0, 0.5, 0.9):
        lengths = [length for length in range(8, 80, 4) if _named_after(length, rho)]
        needed[rho] = min(lengths, default=80)
    assert needed[0.0] <= needed[0.5] <= needed[0.9] and needed[0.0] <= 16, needed


def _named_after(length: int, rho: float) -> bool:
    jobs = (slow(0.02 * lasting(rho, 8, seed), 0.1, STEPS - length) for seed in range(3))
    return all([each.unit for each in judged(busy, live=True).slow] == [1] for busy in jobs)


def test_earlier_windows_tell_of_two_ranks_what_one_window_cannot() -> None:
    """Whether noise has a memory of a hundred steps, which would explain what is seen."""
    earlier = blocks_of(np.diff(0.02 * lasting(0.0, 3, 7, steps=16 * STEPS), axis=1))
    busy = slow(0.02 * lasting(0.0, 2, 3), 0.1, STEPS - 24)
    assert not judged(busy, live=True).slow
    assert [each.unit for each in judged(busy, live=True, earlier=earlier).slow] == [1]


@pytest.mark.parametrize("ranks", [3, 4])
def test_who_is_slow_beside_few_noisy_ranks_is_doubted_live_and_nobody_where_all_are_well(ranks: int) -> None:
    """A live job is not called well by that noise might explain a rank that is slow in nearly all steps."""
    noises = [0.1 * lasting(0.5, ranks, seed) for seed in range(20)]
    found = [judged(slow(noise.copy(), 0.5), live=True, step_seconds=0.25) for noise in noises]
    assert all(it.slow or (it.doubted and it.doubted.unit == 1) for it in found)
    assert any(not it.slow for it in found), "the noise is too small to tell"
    assert not any(judged(1 + noise, live=True, step_seconds=0.25).doubted for noise in noises)


def test_a_moment_is_none_and_pauses_that_come_again_are_one_cause() -> None:
    noise = 0.01 * lasting(0.0, 8, 1, steps=400)
    assert not judged(slow(noise.copy(), 3.0, 200, 202), step_seconds=0.25).slow
    busy = 1 + noise
    busy[5::20, 1] += 1.0
    assert [each.unit for each in judged(busy, step_seconds=0.25).slow] == [1]


def test_who_costs_much_and_cannot_be_told_from_noise_is_doubted_with_the_steps_that_would_decide() -> None:
    found = judged(slow(0.05 * lasting(0.5, 2, 2, steps=40), 0.25))
    assert not found.slow and found.doubted is not None
    assert found.doubted.unit == 1 and found.doubted.cost > 0.05 and found.doubted.needed > 40


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.98])
def test_the_chance_of_a_level_is_no_less_than_what_happens(rho: float) -> None:
    """Of healthy ranks no more than some five in a hundred have a chance of 0.05."""
    below = 0
    for seed in range(200):
        noise = lasting(rho, 8, seed)
        excess = noise - others_median(noise)
        chances = Noise(blocks_of(0.02 * excess[:, 1:]), Where(64, 56, 8), NO_SPREAD).chances(
            0.02 * float(excess[64:, 0].mean()), 0.02 * float(np.median(excess[:56, 0]))
        )
        below += chances.ever <= 0.05
    assert below <= 20


def test_noise_without_memory_halves_with_each_doubling_and_other_noise_does_not() -> None:
    white, slowly = ([each.variance for each in blocks_of(lasting(rho, 64, 1, steps=1024))[:5]] for rho in (0.0, 0.99))
    assert np.allclose(np.divide(white[1:], white[:-1]), 0.5, atol=0.1)
    assert (np.diff(slowly) > 0).all()


@given(st.integers(1, 8), st.integers(0, 12), st.integers(20, 200), st.floats(1e-3, 0.02), st.floats(1e-6, 0.5))
def test_more_moments_and_longer_ones_are_less_likely(
    moments: int, more: int, blocks: int, share: float, lasts: float
) -> None:
    chance = chance_of_moments(moments, moments + more, blocks, share, lasts)
    assert 0 <= chance <= 1
    assert chance_of_moments(moments + 1, moments + 1, blocks, share, lasts) <= chance_of_moments(
        moments, moments, blocks, share, lasts
    )
    assert chance_of_moments(moments, moments + more + 1, blocks, share, lasts) <= chance + 1e-12


@given(st.integers(8, 600))
def test_the_parts_are_all_of_it_its_eighths_and_its_last_steps(steps: int) -> None:
    parts = parts_of(steps)
    assert parts[0] == Part(0, steps) and len(set(parts)) == len(parts)
    assert all(0 <= part.begin < part.end <= steps for part in parts)
    assert 6 <= min(part.end - part.begin for part in parts) <= 12
    assert min(part.end - part.begin for part in parts if part.end == steps) <= 12, "what has just begun is seen"
