"""What the Flight Recorder saw, less what the hooks saw, is what passed them by."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from laggard.trainer_hooks.witness import Seen, unseen

COLLECTIVES = st.lists(
    st.builds(Seen, st.sampled_from(["all_reduce", "broadcast", "all_gather"]), st.sampled_from([4, 8, 4096])),
    max_size=12,
)


@given(COLLECTIVES, COLLECTIVES, st.randoms())
def test_what_is_known_is_taken_away(known: list[Seen], others: list[Seen], random: object) -> None:
    witnessed = known + others
    random.shuffle(witnessed)  # type: ignore[attr-defined]
    left = unseen(witnessed, known)
    assert Counter(left) == Counter(others)
    remaining = iter(witnessed)
    assert all(each in remaining for each in left), "in the order in which they were launched"


@given(COLLECTIVES, st.sampled_from([4, 8, 4096]))
def test_a_reduce_scatter_is_known_as_what_gloo_makes_of_it(others: list[Seen], size: int) -> None:
    left = unseen([*others, Seen("all_reduce", size)], [Seen("reduce_scatter", size)])
    assert len(left) == len(others)
    assert Counter(each.op for each in left) == Counter(each.op for each in others)


def test_one_of_another_size_is_known_by_its_operation() -> None:
    assert unseen([Seen("scatter", 2048), Seen("all_reduce", 4)], [Seen("scatter", 1024)]) == [Seen("all_reduce", 4)]
