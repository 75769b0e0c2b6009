"""Medians of a rank's peers, against numpy's over a copy without it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.locate.medians import last_axis_median, median_over_steps, others_median
from laggard.locate.slow import steps as peers
from laggard.locate.slow.steps import Peers


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
def test_the_median_of_each_row_and_column(values: np.ndarray) -> None:
    np.testing.assert_array_equal(last_axis_median(values), [median(row) for row in values])
    np.testing.assert_array_equal(median_over_steps(values), [median(column) for column in values.T])


@given(tables)
def test_a_median_of_others_leaves_out_the_value_itself(values: np.ndarray) -> None:
    found = others_median(values)
    for (row, column), result in np.ndenumerate(found):
        np.testing.assert_array_equal(result, median(np.delete(values[row], column)))


@given(tables, st.integers(1, 5), st.integers(1, 4), st.integers(0, 999))
def test_peers_do_the_same_work_on_other_machines_where_there_are_enough(
    values: np.ndarray, classes: int, per_node: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    ranks = values.shape[1]
    positions = generator.integers(0, classes, ranks).astype(np.int32)
    nodes = [f"n{rank // per_node}" for rank in range(ranks)]
    without = generator.random(ranks) < 0.2
    found = Peers.of(positions, tuple(nodes)).medians(values, without)
    for column in range(ranks):
        same = [other for other in range(ranks) if positions[other] == positions[column]]
        here = [other for other in same if nodes[other] == nodes[column]]
        elsewhere = len(same) - len(here)
        crowded = elsewhere > 0 and len(here) > max(1, len(same) / 4)
        crowded = crowded and (elsewhere > 2 or 2 * (len(here) - 1) >= len(same) - 1)  # one moves the median of two
        others = [other for other in same if other not in (here if crowded else [column]) and not without[other]]
        if crowded and not others:  # all others are culprits: its mates are what is left
            others = [other for other in same if other != column and not without[other]]
        expected = [median(row) for row in values[:, others]]
        if crowded:  # in a step that none of them has, its mates
            mates = [other for other in same if other != column and not without[other]]
            both = zip(expected, values[:, mates], strict=True)
            expected = [own if np.isfinite(own) else median(row) for own, row in both]
        np.testing.assert_array_equal(found[:, column], expected)


def test_more_ranks_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    values = table(1, 9, 50, 0.2, False)
    compared = Peers.of(np.arange(50, dtype=np.int32) // 25, (None,) * 50)
    of_peers = compared.medians(values)
    monkeypatch.setattr(peers, "BLOCK_VALUES", 40)
    np.testing.assert_array_equal(compared.medians(values), of_peers)
