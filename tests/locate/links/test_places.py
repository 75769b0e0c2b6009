"""The smallest place that covers what is raised, and through which nothing is fast."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.timings import job

from laggard.locate.links.channels import Channel
from laggard.locate.links.places import Explanation, explain
from laggard.locate.links.raised import Findings, Raised

PER_NODE = 4
RANKS = 8 * PER_NODE

Channels = Sequence[tuple[int, ...]]


def found(raised: Channels, fast: Channels = (), costs: Sequence[float] = ()) -> Explanation | None:
    """The place for channels by their ranks, each of which costs 1 s, or as in `costs`."""
    channels = [Channel("", "dp", columns) for columns in (*raised, *fast)]
    each = [Raised(2.0, 1.0, cost, 2.0, 0) for cost in (costs or [1.0] * len(raised))]
    numbers = frozenset(range(len(raised), len(channels)))
    return explain(job(RANKS, 8, per_node=PER_NODE), channels, Findings(dict(enumerate(each)), numbers))


def machines(*numbers: int) -> list[int]:
    return [PER_NODE * number + local for number in numbers for local in range(PER_NODE)]


UP = ((0, 16), (1, 17), (4, 20), (5, 21), (8, 24))
BESIDE = ((0, 4, 8, 12), (16, 20), (17, 21), (20, 24), (24, 28))
"""Ways from machines 0 to 2 to machines 4 to 6, and what is fast on each side."""


@pytest.mark.parametrize(
    ("raised", "fast", "kind", "columns"),
    [
        pytest.param([(0, 4), (0, 8)], [(4, 8), (1, 5)], "adapter", [0], id="others of the machine are fast"),
        pytest.param([(0, 4), (1, 8)], [(4, 12), (8, 12)], "machine", machines(0), id="all of one machine"),
        pytest.param([(0, 4), (1, 5)], [(0, 8), (5, 8), (1, 8), (4, 8)], "way", [0, 1, 4, 5], id="two machines"),
        pytest.param([(0, 4, 8), (1, 5, 9)], [(0, 12), (5, 12), (9, 12), (1, 12), (4, 12), (8, 12)], "among",
                     [0, 1, 4, 5, 8, 9], id="among three machines"),
        pytest.param([(0, 4), (4, 8), (8, 12)], [(1, 5), (5, 9), (9, 13), (2, 6)], "rail", list(range(0, RANKS, 4)),
                     id="the adapters of one place"),
        pytest.param([(0, 1), (2, 3)], [(4, 5), (6, 7)], "within", machines(0), id="within a machine"),
        pytest.param([(0, 1, 2, 3), (0, 4)], [(1, 5), (2, 6), (4, 5, 6, 7)], "rank", [0],
                     id="of one rank, to its machine and to others"),
        pytest.param(UP, BESIDE, "switch", machines(0, 1, 2, 3), id="all that leads to the other side"),
        pytest.param([(0, 4)], [(1, 5), (2, 6)], "group", [0, 4], id="between two ranks, and not their machines"),
    ],
)  # fmt: skip
def test_the_smallest_place_is_named(raised: Channels, fast: Channels, kind: str, columns: list[int]) -> None:
    place = found(raised, fast)
    assert place is not None and (place.kind, place.columns) == (kind, columns)
    assert place.explained == set(range(len(raised)))


def test_of_one_group_any_member_may_be_the_place() -> None:
    place = found([(0, 4, 8, 12)])
    assert place is not None and place.columns == [0, 4, 8, 12] and not place.is_one_thing


def test_what_costs_more_counts_more() -> None:
    place = found([(0, 4), (0, 8), (12, 16)], costs=(0.1, 0.1, 3.0))
    assert place is not None and set(place.columns) == {12, 16}


def test_few_fast_channels_are_no_reason_against_a_place() -> None:
    raised = [(0, other) for other in (4, 8, 12, 16, 20)]
    place = found(raised, [(0, 24)])
    assert place is not None and place.columns == [0]
    place = found(raised, [(0, 24), (0, 25), (0, 26), (0, 27)])
    assert place is None or place.columns != [0]
