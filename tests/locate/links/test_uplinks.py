"""The machines behind one switch: those whose ways to all others are slow."""

from __future__ import annotations

import math

import pytest

from laggard.locate.links.slow_links import MAX_DESIGN_RATIO, MAX_OVERSUBSCRIPTION, behind_a_switch, is_beyond_design

STARS = ((8, 40), (40, 72), (9, 41), (41, 73))
"""The slow ways of a pipeline of which one stage's machines, 40 and 41, are behind a slow switch."""
RAILS = ((8, 12), (9, 13), (10, 14))
"""The slow ways between two stages of three machines each."""
STAGES = ((4, 8), (5, 9), (6, 10), (4, 5, 6), (8, 9, 10), (12, 13, 14))
"""What is fast: between the stage before and the first of these, and the gradients of each."""

Ways = tuple[tuple[int, ...], ...]


def behind(slow: Ways, fast: Ways = ()) -> frozenset[int]:
    return behind_a_switch({frozenset(way) for way in slow}, {frozenset(way) for way in fast})


def test_machines_with_all_slow_ways_between_them_and_others_are_behind_it() -> None:
    assert behind(STARS) == {40, 41}
    assert behind(STARS, fast=((40, 41), (72, 104))) == {40, 41}


def test_machines_that_reach_each_other_fast_and_others_slowly_are_behind_it() -> None:
    assert behind(RAILS, fast=STAGES) == {12, 13, 14}


def test_two_machines_of_a_ring_that_others_reach_slowly_are_behind_it() -> None:
    """Two stages of four machines each; the first two of the second stage share a switch."""
    slow, fast = ((0, 4), (1, 5), (4, 5, 6, 7)), ((2, 6), (3, 7), (0, 1, 2, 3))
    assert behind(slow, fast) == {4, 5}


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        pytest.param(STARS, ((40, 104),), id="a fast way leads away from them"),
        pytest.param(((8, 40), (9, 41)), (), id="either end"),
        pytest.param(((8, 40), (40, 72)), (), id="one machine"),
        pytest.param((*STARS, (40, 41)), (), id="between them as well"),
        pytest.param(RAILS, STAGES[3:], id="either of two sides that are as large"),
        pytest.param(RAILS, (*STAGES, (6, 13)), id="a fast way from one side to the other"),
        pytest.param(RAILS[:1], STAGES, id="one slow way"),
        pytest.param(((8, 12), (9, 12)), ((8, 9), (9, 10)), id="a side of one machine, by ways of two"),
        pytest.param(((8, 40), (40, 72, 73)), (), id="a group over more machines, which shows no way"),
        pytest.param((), (), id="nothing is slow"),
    ],
)
def test_else_none_is(slow: Ways, fast: Ways) -> None:
    assert behind(slow, fast) == frozenset()


@pytest.mark.parametrize(
    ("ratio", "rate", "expected"),
    [
        pytest.param(0.9 * MAX_OVERSUBSCRIPTION, 40e9, False, id="as switches above a pod are built"),
        pytest.param(1.1 * MAX_OVERSUBSCRIPTION, 40e9, True, id="beyond that"),
        pytest.param(1.1 * MAX_OVERSUBSCRIPTION, 700e9, False, id="the equals go through NVLink"),
        pytest.param(1.1 * MAX_OVERSUBSCRIPTION, math.nan, False, id="sizes are not known"),
        pytest.param(1.1 * MAX_DESIGN_RATIO, math.nan, True, id="beyond what NVLink makes"),
    ],
)
def test_slower_than_any_design(ratio: float, rate: float, expected: bool) -> None:
    assert is_beyond_design(ratio, rate) is expected
