"""Steps are checked as one array, and judged as each of them alone would be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from laggard.collector.scrape.bounds import MAX_CLOCK, MAX_COUNT, MAX_SECONDS
from laggard.collector.scrape.checked_steps import check_step, possible_steps
from laggard.collector.scrape.validation import validate_ranks_answer
from laggard.constants import PHASES
from laggard.locate.step_tables import STEP_COLUMNS, step_rows, step_table
from laggard.wire import WireError, encode
from laggard.wire.ranks import StepRow

SOUND = StepRow(7, 100.0, 101.0, (0.1,) * len(PHASES), 0.1, 3)


def _sent(make: Any, *rows: StepRow) -> bytes:
    """What an agent sends of three ranks, of which the second made `rows`."""
    ranks = [make.rank_row(0, rows=[SOUND]), make.rank_row(1, rows=rows), make.rank_row(2, rows=[])]
    return encode(make.ranks_document("n0", ranks))


def test_each_rank_has_its_own_steps_as_a_table(make: Any) -> None:
    rows = [structs.replace(SOUND, step=step) for step in (8, 9, 11)]
    answer = validate_ranks_answer(_sent(make, *rows))
    assert [list(step_rows(table)) for table in answer.steps] == [[SOUND], rows, []]
    assert [row.rows for row in answer.document.ranks] == [(SOUND,), tuple(rows), ()]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"step": MAX_COUNT + 1}, "a step number is out of range"),  # which a double rounds to the limit
        ({"work": MAX_COUNT + 1}, "rank 1: a step's work is out of range"),
        ({"work": -1}, "a step's work is out of range"),
        ({"waited": MAX_SECONDS + 1}, "rank 1, step 7: a time is out of range"),
        ({"end": 100.0 + MAX_SECONDS + 1}, "rank 1, step 7: a time is out of range"),
        ({"start": 102.0}, "rank 1, step 7: ends before it starts"),
        ({"phases": (0.1,) * (len(PHASES) + 1)}, "rank 1, step 7: phases are not"),
        ({"phases": ()}, "rank 1, step 7: phases are not"),
        ({"step": 10**400}, "a step number is out of range"),
    ],
)
def test_one_impossible_step_among_others_is_named(make: Any, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        validate_ranks_answer(_sent(make, SOUND, structs.replace(SOUND, **changes), SOUND))


@pytest.mark.parametrize(
    "changes",
    [
        {"step": MAX_COUNT},
        {"work": MAX_COUNT},
        {"waited": MAX_SECONDS},
        {"start": 0.0, "end": MAX_SECONDS},
        {"start": MAX_CLOCK, "end": MAX_CLOCK},
        {"phases": (MAX_SECONDS,) * len(PHASES)},
        {"start": 0.0, "end": 0.0, "waited": 0.0, "phases": (0.0,) * len(PHASES), "step": 0, "work": 0},
    ],
)
def test_a_step_at_a_limit_is_taken(make: Any, changes: dict[str, Any]) -> None:
    at_limit = structs.replace(SOUND, **changes)
    tables = validate_ranks_answer(_sent(make, SOUND, at_limit)).steps
    assert list(step_rows(tables[1])) == [SOUND, at_limit] and list(step_rows(tables[0])) == [SOUND]


SECONDS = st.sampled_from((0.0, -0.0, -1e-300, 0.5, MAX_SECONDS, math.nextafter(MAX_SECONDS, 1e9), MAX_CLOCK, 1e300))
COUNTS = st.sampled_from((0, -1, 1, MAX_COUNT - 1, MAX_COUNT, MAX_COUNT + 1, MAX_COUNT + 2, 10**30, 10**400))
PHASE_TIMES = st.tuples(SECONDS, st.integers(0, len(PHASES))).map(lambda it: (it[0],) + (0.1,) * it[1])
FIELDS = {"step": COUNTS, "start": SECONDS, "end": SECONDS, "phases": PHASE_TIMES, "waited": SECONDS, "work": COUNTS}
CHANGES = st.sets(st.sampled_from(sorted(FIELDS)), max_size=2).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)


@settings(max_examples=300, deadline=None)
@given(CHANGES)
def test_no_step_that_is_refused_alone_is_possible_among_others(make: Any, changes: dict[str, Any]) -> None:
    row = structs.replace(SOUND, **changes)
    table = possible_steps([make.rank_row(0, rows=[SOUND, row])])
    try:
        check_step("rank 0", row)
    except WireError:
        assert table is None
    else:
        assert table is None or np.array_equal(table, step_table([SOUND, row]))
        assert validate_ranks_answer(_sent(make, row)).steps[1].shape == (1, STEP_COLUMNS)
