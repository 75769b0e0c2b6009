"""Outliers on tables made from a known law: wrong rows are found, right ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from laggard.reports.outliers import find_outliers
from laggard.reports.runs import Run

MICRO_BATCHES = (16, 32, 64, 128)
SAMPLES = 512


def campaign(seed: int, platforms: int = 3, noise: float = 0.02) -> list[Run]:
    """Runs whose step takes g (a + c m) for computing, and communication once or in each micro-step by stage."""
    random = np.random.default_rng(seed)
    runs = []
    for platform in range(platforms):
        compute = np.exp(random.normal(-5, 0.5))
        overhead = compute * random.uniform(2, 10)
        transfer = compute * random.uniform(5, 30)
        for stage in (1, 2, 3):
            for micro_batch in MICRO_BATCHES:
                accumulated = SAMPLES // micro_batch
                seconds = accumulated * (overhead + compute * micro_batch)
                seconds += transfer * {1: 2, 2: 0.5 + accumulated, 3: 4 * accumulated}[stage]
                speed = SAMPLES / seconds * np.exp(random.normal(0, noise))
                runs.append(Run(len(runs) + 2, f"p{platform}", stage, micro_batch, accumulated, float(speed)))
    return runs


@pytest.mark.parametrize("seed", range(6))
def test_a_right_table_has_no_outlier(seed: int) -> None:
    assert find_outliers(campaign(seed)) == ()


@pytest.mark.parametrize(("place", "factor"), [(5, 0.45), (17, 2.2), (22, 10.0), (30, 0.1), (13, 60.0)])
def test_a_wrong_row_is_found_alone(place: int, factor: float) -> None:
    runs = campaign(place)
    right = runs[place].samples_per_second or 0.0
    runs[place] = runs[place]._replace(samples_per_second=right * factor)
    (found,) = find_outliers(runs)
    assert found.run.line == runs[place].line
    assert found.expected == pytest.approx(right, rel=0.35)


def test_several_wrong_rows_do_not_hide_each_other() -> None:
    runs = campaign(3)
    for place, factor in ((4, 0.3), (16, 3.0), (29, 0.3)):
        runs[place] = runs[place]._replace(samples_per_second=(runs[place].samples_per_second or 0.0) * factor)
    assert [found.run.line for found in find_outliers(runs)] == [6, 18, 31]


def test_with_three_rows_nothing_is_called_wrong() -> None:
    assert find_outliers([Run(2 + g, "p", 1, 64, g, speed) for g, speed in ((1, 10.0), (2, 11.0), (4, 90.0))]) == ()
