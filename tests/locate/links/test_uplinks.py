"""The machines behind one switch: those whose ways to all others are slow."""

from __future__ import annotations

import pytest

from laggard.locate.links.uplinks import MAX_DESIGN_RATIO, behind_a_switch

FAR = 10 * MAX_DESIGN_RATIO
STARS = ((8, 40), (40, 72), (9, 41), (41, 73))
"""The slow ways of a pipeline of which one stage's machines, 40 and 41, are behind a slow switch."""


def behind(
    slow: tuple[tuple[int, int], ...], fast: tuple[tuple[int, int], ...] = (), ratio: float = FAR
) -> frozenset[int]:
    return behind_a_switch({frozenset(way): ratio for way in slow}, {frozenset(way) for way in fast})


def test_machines_with_all_slow_ways_between_them_and_others_are_behind_it() -> None:
    assert behind(STARS) == {40, 41}
    assert behind(STARS, fast=((40, 41), (72, 104))) == {40, 41}


@pytest.mark.parametrize(
    ("slow", "fast", "ratio"),
    [
        pytest.param(STARS, (), MAX_DESIGN_RATIO / 2, id="longer ways by design"),
        pytest.param(STARS, ((40, 104),), FAR, id="a fast way leads away from them"),
        pytest.param(((8, 40), (9, 41)), (), FAR, id="either end"),
        pytest.param(((8, 40), (40, 72)), (), FAR, id="one machine"),
        pytest.param((*STARS, (40, 41)), (), FAR, id="between them as well"),
        pytest.param((), (), FAR, id="nothing is slow"),
    ],
)
def test_else_none_is(slow: tuple[tuple[int, int], ...], fast: tuple[tuple[int, int], ...], ratio: float) -> None:
    assert behind(slow, fast, ratio) == frozenset()


def test_a_group_over_more_machines_shows_no_way() -> None:
    assert behind_a_switch({frozenset((8, 40)): FAR, frozenset((40, 72, 73)): FAR}, set()) == frozenset()
