"""Medians without one rank, against numpy's over a copy without it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collector.locate.slow import peers
from laggard.collector.locate.slow.peers import PeerPool, median_over_steps, row_medians


def table(seed: int, steps: int, ranks: int, missing: float, ties: bool) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 4, (steps, ranks)).astype(float) if ties else generator.random((steps, ranks))
    values[generator.random(values.shape) < missing] = np.nan
    return values


tables = st.builds(
    table, st.integers(0, 9999), st.integers(1, 12), st.integers(1, 12), st.sampled_from((0.0, 0.3, 0.8)), st.booleans()
)


def median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


@given(tables)
def test_a_pool_without_one_rank(values: np.ndarray) -> None:
    pool = PeerPool(values)
    for column in range(values.shape[1]):
        expected = median(np.delete(values, column, axis=1))
        assert pool.median_excluding(values[:, column]) == pytest.approx(expected, nan_ok=True, abs=0)


@given(tables)
def test_the_median_of_each_row_and_column(values: np.ndarray) -> None:
    np.testing.assert_array_equal(row_medians(values).median, [median(row) for row in values])
    np.testing.assert_array_equal(median_over_steps(values), [median(column) for column in values.T])


@given(st.integers(1, 9), st.integers(0, 1000), st.floats(0, 0.6))
def test_a_median_of_peers_leaves_out_the_rank_itself(ranks: int, seed: int, missing: float) -> None:
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 5, (3, ranks)).astype(float)  # few values, so that there are ties
    values[generator.random(values.shape) < missing] = np.nan
    result = row_medians(values).excluding(values)
    for row in range(3):
        for column in range(ranks):
            others = [value for other, value in enumerate(values[row]) if other != column and np.isfinite(value)]
            if others and np.isfinite(values[row, column]) and len(others) >= 1:
                assert result[row, column] == np.median(others)


def test_more_ranks_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    values = table(1, 9, 50, 0.2, False)
    whole = median_over_steps(values)
    monkeypatch.setattr(peers, "BLOCK", 7)
    np.testing.assert_array_equal(median_over_steps(values), whole)
