"""The smallest place that covers what is raised, and through which nothing is fast."""

from collections.abc import Sequence

from support.rows import rows
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


@rows("locate/places")
def test_the_smallest_place_is_named(raised: Channels, fast: Channels, kind: str, columns: tuple[int, ...]) -> None:
    place = found(raised, fast)
    assert place is not None and (place.kind, place.columns) == (kind, list(columns))
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
