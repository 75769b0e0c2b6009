"""The one test: how often it accuses a healthy unit, where noise lasts or one has more of it than the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.locate.slow.tested import Units, judge

STEPS, UNITS, STEP_SECONDS, TRIALS = 128, 8, 0.5, 60


def noise(draw: np.random.Generator, rho: float, deviations: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """[S, U]: noise that keeps the share `rho` from step to step, in step times."""
    values = np.empty((steps, len(deviations)))
    level = draw.normal(0, deviations)
    for step in range(steps):
        level = rho * level + draw.normal(0, deviations * math.sqrt(1 - rho * rho))
        values[step] = level
    return values


def accused(excess: NDArray[np.float64], live: bool, errors: NDArray[np.float64] | None = None) -> int:
    units = Units(excess * STEP_SECONDS, np.ones(excess.shape[1], np.bool_), errors=errors)
    return len(judge(units, np.full(len(excess), STEP_SECONDS), live).slow)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_rank_with_more_noise_than_the_others_is_rarely_accused(rho: float, live: bool) -> None:
    draw = np.random.default_rng(7)
    deviations = np.array([0.06, *(UNITS - 1) * [0.01]])
    found = 0
    for _ in range(TRIALS):
        own = noise(draw, rho, deviations, STEPS)
        found += accused(own - np.median(own, axis=1, keepdims=True), live) > 0
    assert found <= TRIALS // 8, f"{found} of {TRIALS}: by the others' noise alone it would be half"


def test_the_error_of_what_a_lone_rank_was_counts() -> None:
    draw = np.random.default_rng(8)
    found = 0
    for _ in range(TRIALS):
        own = noise(draw, 0.0, np.full(4, 0.06), 8 + STEPS)
        base, first = np.median(own[:8], axis=0), own[:8]
        errors = 1.4826 * np.median(np.abs(first - base), axis=0) * math.sqrt(math.pi / 2 / 8)
        found += accused(own[8:] - base, False, errors * STEP_SECONDS) > 0
    assert found <= TRIALS // 15, f"{found} of {TRIALS}"


def test_a_rank_that_is_slower_by_a_tenth_is_accused_however_short_the_noise() -> None:
    draw = np.random.default_rng(9)
    for rho in (0.0, 0.5):
        own = noise(draw, rho, np.full(UNITS, 0.01), STEPS)
        own[:, 3] += 0.1
        excess = own - np.median(own, axis=1, keepdims=True)
        (found,) = judge(Units(excess, np.ones(UNITS, np.bool_)), np.full(STEPS, 1.0), True).slow
        assert found.unit == 3 and 0.08 < found.level < 0.12
