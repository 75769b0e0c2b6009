"""Steps come as columns, and whatever an agent may lie is refused."""

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.collectors import Make
from support.mutated import mutated
from support.steps import StepRow, step_table

from laggard.agent.ranks.reader import pack
from laggard.agent.ranks.row import MAX_STEP_NS, is_valid_step
from laggard.collector.scrape import validation
from laggard.collector.scrape.validation import MAX_STEPS_OF_ANSWER, validate_ranks_answer
from laggard.kit.constants import PHASES
from laggard.kit.limits import MAX_COUNT
from laggard.locate.job_timings import STEP_COLUMNS
from laggard.rankfile import Step
from laggard.wire import WireError, decode, encode
from laggard.wire.ranks import PackedSteps, RanksDocument

SOUND = Step(7, 100 * 10**9, 101 * 10**9, (10**8,) * len(PHASES), 10**8, 3)
SHORTEST = MAX_STEP_NS - 10**4
"""The longest time that an agent lets pass."""


def _document(make: Any, packed: PackedSteps, ranks: int = 3) -> RanksDocument:
    rows = [make.rank_row(rank % 3, rows=[]) for rank in range(ranks)]
    return structs.replace(make.ranks_document("n0", rows), steps=packed)


def _steps() -> st.SearchStrategy[list[list[Step]]]:
    time = st.one_of(st.integers(0, 10**10), st.integers(0, SHORTEST))

    def made(number: int, start: int, length: int, phases: list[int], waited: int, work: int) -> Step:
        return Step(number, start, start + length, tuple(phases), waited, work)

    phases = st.lists(st.one_of(st.just(0), time), min_size=len(PHASES), max_size=len(PHASES))
    count, start = st.integers(0, MAX_COUNT - 1), st.integers(0, 1 << 62)
    step = st.builds(made, count, start, time, phases, time, st.one_of(st.just(0), count))
    return st.lists(st.lists(step, max_size=5), min_size=3, max_size=3)


@settings(max_examples=150, deadline=None)
@given(_steps())
def test_columns_make_tables_in_seconds_to_the_bit(steps: list[list[Step]]) -> None:
    found = validate_ranks_answer(encode(_document(Make, pack(steps)))).steps
    for table, its in zip(found, steps, strict=True):
        assert table.tobytes() == step_table(map(_in_seconds, its)).tobytes()
        assert not table.flags.writeable and table.shape == (len(its), STEP_COLUMNS)


def _in_seconds(it: Step) -> StepRow:
    return StepRow(it.step, it.start / 1e9, it.end / 1e9, tuple(ns / 1e9 for ns in it.phases), it.waited / 1e9, it.work)


def test_columns_of_noughts_take_no_room_and_those_of_short_times_half(make: Any) -> None:
    few = pack([[SOUND._replace(work=0, phases=(0, 10**8, *([0] * (len(PHASES) - 2))))], [], []])
    assert few.counts == (1, 0, 0) and few.widths == (4, 8, 4, 4, 0, 0, 4, *([0] * (len(PHASES) - 2)))
    assert few.columns == struct.pack("<IQIII", 7, 100 * 10**9, 10**9, 10**8, 10**8)
    assert pack([[SOUND._replace(end=SOUND.start + (1 << 32))]]).widths[2] == 8
    assert pack([[], []]) == PackedSteps((0, 0), (0,) * STEP_COLUMNS, b"")
    assert [len(it) for it in validate_ranks_answer(encode(_document(make, pack([[], [], []])))).steps] == [0, 0, 0]


GOOD = pack([[SOUND], [SOUND, SOUND._replace(step=8)], []])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"counts": (1, 2)}, "not of as many ranks"),
        ({"counts": (1, 2, 0, 0)}, "not of as many ranks"),
        ({"counts": (1, 3, -1)}, "more than 8192 steps of a rank"),
        ({"counts": (1, validation.MAX_STEPS + 1, 0)}, "more than 8192 steps of a rank"),
        ({"counts": (1, 1, 0)}, "cut off, or too long"),
        ({"columns": GOOD.columns[:-1]}, "cut off, or too long"),
        ({"columns": GOOD.columns + b"\0"}, "cut off, or too long"),
        ({"columns": b""}, "cut off, or too long"),
        ({"widths": GOOD.widths[:-1]}, "other than 14 columns"),
        ({"widths": (*GOOD.widths, 0)}, "other than 14 columns"),
        ({"widths": (2, *GOOD.widths[1:])}, "the width of a packed column is none"),
        ({"widths": (-4, *GOOD.widths[1:])}, "the width of a packed column is none"),
        ({"widths": (1 << 60, *GOOD.widths[1:])}, "the width of a packed column is none"),
    ],
)
def test_columns_that_are_not_what_they_say_are_refused(make: Any, changes: dict[str, Any], complaint: str) -> None:
    validate_ranks_answer(encode(_document(make, GOOD)))
    with pytest.raises(WireError, match=complaint):
        validate_ranks_answer(encode(_document(make, structs.replace(GOOD, **changes))))


def test_a_few_bytes_do_not_become_a_large_table(make: Any) -> None:
    ranks = MAX_STEPS_OF_ANSWER // validation.MAX_STEPS + 1
    bomb = PackedSteps((validation.MAX_STEPS,) * ranks, (0,) * STEP_COLUMNS, b"")
    with pytest.raises(WireError, match=f"more than {MAX_STEPS_OF_ANSWER} steps"):
        validate_ranks_answer(encode(_document(make, bomb, ranks)))


@pytest.mark.parametrize("column", range(STEP_COLUMNS))
@pytest.mark.parametrize("number", [(1 << 64) - 1, 1 << 63, (1 << 63) - 1])
def test_a_number_that_no_step_has_is_refused_and_its_rank_named(make: Any, column: int, number: int) -> None:
    """The largest of 64 bits, the first that is negative with a sign, and the last that is not: as a start, the end
    after it is."""
    columns = [[7, 7], [100, 100], [1, 1], [1, 1], [3, 3], *[[1, 1]] * len(PHASES)]
    columns[column] = [columns[column][0], number]
    packed = PackedSteps((1, 1, 0), (8,) * STEP_COLUMNS, b"".join(struct.pack("<2Q", *each) for each in columns))
    with pytest.raises(WireError, match="rank 1: a number of a step is out of range"):
        validate_ranks_answer(encode(_document(make, packed)))


def test_a_step_at_the_agents_limits_is_taken(make: Any) -> None:
    """Else one user's rank file would cost the node's whole answer."""
    last = Step(MAX_COUNT, (1 << 62) - SHORTEST, 1 << 62, (SHORTEST,) * len(PHASES), SHORTEST, MAX_COUNT)
    assert is_valid_step(last)
    assert len(validate_ranks_answer(encode(_document(make, pack([[last], [], []])))).steps[0]) == 1


def test_columns_are_read_without_laggard(make: Any) -> None:
    """As docs/formats.md has it: base64 in JSON, columns of little-endian numbers."""
    steps = json.loads(encode(_document(make, GOOD)))["steps"]
    found = np.frombuffer(base64.b64decode(steps["columns"]), "<u4", sum(steps["counts"]))
    assert found.tolist() == [7, 7, 8] and steps["widths"][0] == 4


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutated_answer_is_refused_or_makes_possible_tables(data: st.DataObject) -> None:
    document = json.loads(encode(_document(Make, GOOD)))
    document["steps"] = data.draw(mutated(document["steps"]))
    try:
        answer = validate_ranks_answer(json.dumps(document).encode())
    except WireError:
        return
    assert decode(json.dumps(document).encode(), RanksDocument)
    for table in answer.steps:
        assert np.isfinite(table).all() and (table >= 0).all() and (table[:, 2] >= table[:, 1]).all()
