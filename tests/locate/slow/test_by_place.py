"""Work that differs by the place in groups is told from slow machines, and a slow rank among such work is found."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from support.timings import job

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings
from laggard.locate.positions import GroupPlaces, group_places
from laggard.locate.verdict import locate
from laggard.model import Location, Note, Verdict

RANKS, STEPS = 32, 64
NEIGHBOURS = [(first, first + 1) for first in range(0, RANKS, 2)]
NODES_APART = [(first, first + 8) for first in (*range(8), *range(16, 24))]
OPTIMIZER = PHASES.index("optimizer")


def places(groups: Iterable[Sequence[int]], ranks: int = RANKS, role: str = "other") -> tuple[GroupPlaces, ...]:
    return group_places(range(ranks), 2 * ranks, [(role, tuple(each)) for each in groups])


def uneven(groups: Sequence[Sequence[int]], shares: Sequence[float], ranks: int = RANKS, **options: Any) -> JobTimings:
    """A job in which forward takes longer by a share of the step, by the place in each of `groups`."""
    heavy = [([group[place] for group in groups], share) for place, share in enumerate(shares) if share]
    slow = (*heavy, *options.pop("slow", ()))
    return job(ranks, STEPS, slow, group_places=places(groups, ranks, options.pop("role", "other")), **options)


def the_note(location: Location, kind: str) -> Note:
    (note,) = (note for note in location.notes if note.kind == kind)
    return note


@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        (NEIGHBOURS, (0.0, 0.15)),
        (NODES_APART, (0.0, 0.15)),  # whole machines, every other one
        ([tuple(range(first, first + 4)) for first in range(0, RANKS, 4)], (0.0, 0.1, 0.2, 0.3)),
        ([(0, 1), (2, 3), (4, 5), (6, 7)], (0.15, 0.0)),
    ],
)
def test_more_work_in_the_same_place_of_each_group_accuses_nobody(
    groups: list[tuple[int, ...]], shares: tuple[float, ...]
) -> None:
    location = locate(uneven(groups, shares, ranks=len(groups) * len(groups[0])))
    assert location.verdict is Verdict.OK and location.culprits == ()
    note = the_note(location, "uneven_work")
    most = shares.index(max(shares))
    assert {group[most] for group in groups} <= set(note.ranks) and f"of {len(shares)} in their groups" in note.text


@pytest.mark.parametrize("groups", [NEIGHBOURS, NODES_APART])
@pytest.mark.parametrize(("rank", "slower"), [(4, 0.3), (11, 0.12)])
def test_a_rank_that_is_slow_beside_others_of_its_place_is_found(
    groups: list[tuple[int, ...]], rank: int, slower: float
) -> None:
    location = locate(uneven(groups, (0.0, 0.15), slow=[([rank], slower)]))
    assert [culprit.ranks for culprit in location.culprits] == [(rank,)]
    assert location.culprits[0].kind == "slow_compute"


def test_a_rank_with_less_work_that_takes_no_longer_than_those_with_more_costs_nothing() -> None:
    assert locate(uneven(NEIGHBOURS, (0.0, 0.15), slow=[([4], 0.1)])).verdict is Verdict.OK


def test_a_slow_machine_with_ranks_of_all_places_is_found() -> None:
    location = locate(uneven(NEIGHBOURS, (0.0, 0.15), slow=[(range(8, 16), 0.12)]))
    assert [culprit.ranks for culprit in location.culprits] == [tuple(range(8, 16))]


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        ([], "other"),
        (NEIGHBOURS, "dp"),  # that says that its members do the same work
        ([tuple(range(0, RANKS, 2))], "other"),  # a single group
    ],
)
def test_without_groups_that_may_divide_work_slow_ranks_stay_so(groups: list[tuple[int, ...]], role: str) -> None:
    slow = (5, 13, 21)
    made = job(RANKS, STEPS, [(slow, 0.15)], group_places=places(groups, role=role))
    assert sorted(culprit.ranks for culprit in locate(made).culprits) == [(rank,) for rank in slow]


@pytest.mark.parametrize("slow", [(5, 13, 21), (3,), (1, 3, 5, 7)])
def test_a_place_that_is_slow_in_few_groups_is_no_place_with_more_work(slow: tuple[int, ...]) -> None:
    location = locate(job(RANKS, STEPS, [(slow, 0.15)], group_places=places(NEIGHBOURS)))
    assert sorted(rank for culprit in location.culprits for rank in culprit.ranks) == list(slow)


def two_machines(**options: Any) -> JobTimings:
    """A job whose groups have one member on each of two machines, the second of which takes longer."""
    return uneven([(first, first + 8) for first in range(8)], (0.0, 0.15), ranks=16, **options)


def test_where_a_machine_is_as_good_an_explanation_a_note_says_so() -> None:
    location = locate(two_machines())
    assert location.verdict is Verdict.UNKNOWN and location.culprits == ()
    note = the_note(location, "place_or_machine")
    assert (note.ranks, note.node) == (tuple(range(8, 16)), "n1") and "place 2 of 2" in note.text


def _with_slow_update(made: JobTimings) -> JobTimings:
    made.phase_seconds[:, 8:, OPTIMIZER] *= 1.2
    return made


@pytest.mark.parametrize(
    "made",
    [
        two_machines(since=32),
        two_machines(phase="input"),
        _with_slow_update(two_machines()),
    ],
    ids=["later", "in the input", "with a slow update"],
)
def test_a_machine_is_accused_where_anything_tells_that_it_is_slow(made: JobTimings) -> None:
    location = locate(made)
    assert location.verdict is Verdict.FAIL
    assert sorted(rank for culprit in location.culprits for rank in culprit.ranks) == list(range(8, 16))


def test_groups_of_one_kind_have_one_role_and_one_pattern() -> None:
    groups = [(0, 2), (1, 3), (4, 6), (5, 7), *[(first, first + 1) for first in range(0, 8, 2)], (0, 7)]
    found = places(groups, ranks=8)
    assert sorted((kind.size, tuple(kind.place.tolist())) for kind in found) == [
        (2, (0, 0, 1, 1, 0, 0, 1, 1)),
        (2, (0, 1, 0, 1, 0, 1, 0, 1)),
    ]


def test_groups_that_overlap_are_no_kind() -> None:
    """As the pairs of a ring."""
    assert places([(first, first + 1) for first in range(7)], ranks=8) == ()
