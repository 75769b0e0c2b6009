"""Slow ways beside equal ones: those that no place in the network explains, and groups over the same machines."""

import pytest
from support.trained_groups import ALL, RANKS, trained

from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict

PAIRS = tuple((rank, (rank + 5) % RANKS) for rank in range(RANKS))
"""Groups of two ranks, each on two machines, and each rank in two of them."""
SCATTERED = {(1, 6), (2, 7), (4, 9), (8, 13), (11, 0), (14, 3)}
"""No two have an adapter, and few have a way between two machines, to themselves."""


def slowed(groups: set[tuple[int, ...]], seconds: float) -> JobTimings:
    return trained(PAIRS, lambda _, members: seconds if members in groups else 0.0)


def test_slow_ways_without_a_place_are_told_and_the_job_is_not_healthy() -> None:
    location = locate(slowed({tuple(pair) for pair in SCATTERED}, 0.04))
    assert not location.culprits and location.verdict is Verdict.UNKNOWN
    (note,) = location.notes
    assert note.kind == "slow_transfers" and "3.0 times as long as those of equal groups" in note.text


def test_slow_ways_that_cost_little_leave_the_job_healthy() -> None:
    location = locate(slowed({tuple(pair) for pair in SCATTERED}, 0.005))
    assert not location.culprits and location.verdict is Verdict.OK


@pytest.mark.parametrize("seconds", [0.03, 0.1])
def test_groups_over_the_same_machines_that_are_slow_from_the_first_are_one_way(seconds: float) -> None:
    """All groups of one half of the machines, beside the equal ones of the other half."""
    halves = tuple(tuple(first + offset for offset in range(0, 8, 4)) for first in (0, 1, 2, 3, 8, 9, 10, 11))
    slow = set(halves[:4])
    location = locate(trained(halves, lambda _, members: seconds if members in slow else 0.0))
    (culprit,) = location.culprits
    assert culprit.kind == "slow_link" and set(culprit.nodes) == {"n0", "n1"}
    assert set(culprit.ranks) < set(ALL)


SLOW_THREES = ((0, 4, 8), (1, 5, 9))
FAST_THREES = ((6, 10, 14), (7, 11, 15), (5, 10, 13), (4, 9, 12))
"""Groups of three ranks on three machines; those of machine 0 are slow."""


def threes(*more: tuple[int, ...]) -> JobTimings:
    groups = (*SLOW_THREES, *FAST_THREES, *more)
    return trained(groups, lambda _, members: 0.06 if members in SLOW_THREES else 0.0)


def test_a_machine_that_all_equal_groups_go_through_is_not_why_some_are_slow() -> None:
    """All six go through machines 1 and 2, and the two slow ones alone through machine 0."""
    (culprit,) = locate(threes()).culprits
    assert (culprit.kind, culprit.node) == ("slow_link", "n0")


def test_slow_groups_over_the_same_machines_are_named_with_all_of_them_where_no_machine_is_at_fault() -> None:
    (culprit,) = locate(threes((3, 10, 13))).culprits
    assert culprit.kind == "slow_link" and culprit.nodes == ("n0", "n1", "n2")
    assert culprit.confidence <= 0.5
