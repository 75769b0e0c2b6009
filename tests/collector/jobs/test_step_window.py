"""The last steps of a rank are those that a plain book of them would have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps import StepRow, step_rows, step_table

from laggard.collector.jobs.job import StepWindow
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import WINDOW_SECONDS, WINDOW_STEPS

Batch = Sequence[StepRow]
LENGTHS = (0.01, 0.1, 0.3)


def _row(number: int, seconds: float, work: int) -> StepRow:
    """A step of a job whose steps all take `seconds`; `work` tells apart what is sent twice."""
    return StepRow(number, number * seconds, (number + 1) * seconds, (0.0,) * len(PHASES), 0.0, work)


@st.composite
def _batches(draw: st.DrawFn) -> list[Batch]:
    """What an agent sends: most often some of the newest steps, in order, now and then anything."""
    seconds, batches, newest = draw(st.sampled_from(LENGTHS)), [], 0
    for work in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 3)):
            begin = max(0, newest - draw(st.integers(-3, 12)))
            numbers = list(range(begin, begin + draw(st.integers(0, 200))))
        else:
            numbers = draw(st.lists(st.integers(0, newest + 20), max_size=20))
        batches.append([_row(number, seconds, work) for number in numbers])
        newest = max([newest, *numbers])
    return batches


def _kept(book: dict[int, StepRow], most: int) -> list[StepRow]:
    """Those of the steps that a window is to hold, at most `most` or else WINDOW_STEPS of them."""
    rows = [book[number] for number in sorted(book)]
    since = rows[-1].end - WINDOW_SECONDS if rows else 0.0
    recent = next((place for place, row in enumerate(rows) if row.start >= since), 0)
    count = max(WINDOW_STEPS, min(most, len(rows) - recent))
    return rows[-count:]


@settings(max_examples=200, deadline=None)
@given(_batches(), st.sampled_from((WINDOW_STEPS, 1365)))
def test_a_window_holds_what_a_book_of_all_steps_would(batches: list[Batch], most: int) -> None:
    window, book, given_out = StepWindow(), dict[int, StepRow](), list[tuple[np.ndarray, np.ndarray]]()
    for batch in batches:
        last = max(book, default=-1)
        for row in batch:
            book.setdefault(row.step, row)
        assert window.add(step_table(batch), most) == (max(book, default=-1) > last)
        book = {row.step: row for row in _kept(book, most)}
        assert list(step_rows(window.table)) == list(book.values())
        given_out.append((window.table, window.table.copy()))
    assert all(np.array_equal(table, as_given) for table, as_given in given_out), "a reader's table stays as it is"


def test_steps_that_are_numbered_anew_later_are_another_runs() -> None:
    window = StepWindow()
    assert not window.restarted(step_table([_row(5, 1.0, 0)])), "nothing was held"
    window.add(step_table([_row(number, 1.0, 0) for number in range(5, 9)]))
    again = StepRow(0, 100.0, 101.0, (0.0,) * len(PHASES), 0.0)
    assert window.restarted(step_table([_row(9, 1.0, 0), again]))
    assert not window.restarted(step_table([_row(number, 1.0, 0) for number in (7, 6, 8, 12)]))
