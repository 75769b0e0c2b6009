"""The members of process groups as the facts hold them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.rankfile.fact_names import MAX_RUNS, index_in, member_runs, members_of, parse_runs, size_of


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=60, unique=True))
def test_members_are_read_as_they_were_written(members: list[int]) -> None:
    runs = parse_runs(json.loads(json.dumps(member_runs(members))), 4001)
    assert members_of(runs) == tuple(members) and size_of(runs) == len(members)
    assert [index_in(runs, rank) for rank in members] == list(range(len(members)))
    assert index_in(runs, 4001) is None


def test_regular_members_are_one_run_however_many() -> None:
    assert member_runs(range(3, 100_003, 8)) == [3, 12_500, 8]
    assert member_runs((0, 1, 2, 3, 9)) == [0, 4, 1, 9, 1, 1]


def test_members_without_a_pattern_are_left_out() -> None:
    assert member_runs([number * number for number in range(2 * MAX_RUNS)]) is None


@pytest.mark.parametrize(
    "value",
    [None, "0-7", 5, {}, [0], [0, 4], [0, 4, 0], [0, 0, 1], [-1, 2, 1], [0, 9, 1], [0, 2, 8], [0.0, 2, 1],
     [True, 2, 1], [0, 10**30, 1], [0, 8, 1, 0, 8, 1], [0, 1, 1] * (MAX_RUNS + 1), [[0, 1, 1]]],
)  # fmt: skip
def test_what_is_no_list_of_members_of_the_job_is_none(value: Any) -> None:
    assert parse_runs(value, 8) == ()
