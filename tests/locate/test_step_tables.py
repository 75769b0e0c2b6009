"""The steps of ranks stand in the arrays where a plain book of them would have them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps import StepRow, step_rows, step_table

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import BLOCK_RANKS, STEP_COLUMNS, distinct_steps, step_arrays
from laggard.locate.medians import over_phases

Ranks = Sequence[Sequence[int]]


def _row(step: int, rank: int) -> StepRow:
    start = step * 0.5 + rank
    return StepRow(
        step, start, start + 0.25 + rank, tuple(step + rank / 7 + n for n in range(len(PHASES))), rank / 3, rank
    )


def _check(ranks: Ranks) -> None:
    """Compares each place of the arrays with the step of that rank that has its number."""
    books = [{step: _row(step, rank) for step in steps} for rank, steps in enumerate(ranks)]
    tables = [step_table([book[step] for step in sorted(book)]) for book in books]
    arrays, steps = step_arrays(tables), sorted({step for book in books for step in book})
    numbers, *rest = arrays.values()
    assert numbers.tolist() == distinct_steps(tables).tolist() == steps and numbers.dtype == np.int64
    shape = (len(steps), len(ranks))
    assert [array.shape for array in rest] == [shape, (*shape, len(PHASES)), shape, shape]
    for place, step in enumerate(steps):
        for rank, book in enumerate(books):
            row, nothing = book.get(step), np.full(len(PHASES), np.nan)
            expected = (
                (row.end - row.start, row.phases, row.waited, row.work) if row else (np.nan, nothing, np.nan, np.nan)
            )
            for array, value in zip(rest, expected, strict=True):
                assert np.array_equal(array[place, rank], np.asarray(value), equal_nan=True), (step, rank)


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [[]],
        [[], [3], []],
        [[0, 1, 2]] * (2 * BLOCK_RANKS + 1),
        [[0, 1, 2, 3], [0, 2, 3], [0, 1, 3]],
        [[0, 1, 4], [0, 3, 4], [0, 3, 4]],
        [[5, 6], [1, 2], [900, 901], [10**12]],
        [range(10), range(2, 12), range(2, 12), range(10), []],
    ],
)
def test_steps_stand_by_number_and_rank(ranks: Ranks) -> None:
    _check(ranks)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sets(st.integers(0, 9), max_size=9).map(sorted), max_size=6))
def test_gaps_and_ranks_that_are_ahead_change_no_place(ranks: Ranks) -> None:
    _check(ranks)


def test_a_table_has_all_of_a_step() -> None:
    rows = [_row(step, 3) for step in (0, 5, 1 << 53)]
    assert list(step_rows(step_table(rows))) == rows and step_table(()).shape == (0, STEP_COLUMNS)


@pytest.mark.parametrize("count", [1, 3, 7, 8, 9, 12, 16])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_phases_are_added_up_to_the_same_bits_in_either_order_in_memory(count: int, kind: type) -> None:
    generator = np.random.default_rng(count)
    seconds = generator.random((40, 30, count)) * 10.0 ** generator.integers(-6, 3, (40, 30, count))
    seconds[generator.random(seconds.shape) < 0.01] = np.nan
    in_order = seconds.astype(kind)
    by_phase = np.ascontiguousarray(in_order.transpose(2, 0, 1)).transpose(1, 2, 0)
    for each in (in_order, by_phase, in_order[3:, 5:7], by_phase[::2, [0, 8]]):
        expected = over_phases(np.ascontiguousarray(each))
        assert over_phases(each).dtype == kind and np.array_equal(over_phases(each), expected, equal_nan=True)
    np.testing.assert_allclose(over_phases(in_order), seconds.sum(axis=2), rtol=1e-5 if kind is np.float32 else 1e-12)
