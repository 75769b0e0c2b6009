"""Which ranks do the same work, by declared positions and by groups."""

from __future__ import annotations

import numpy as np

from laggard.locate.live_positions import Membership, Place, alone_in_stage, position_classes


def classes(places: list[Place]) -> list[set[int]]:
    numbers = position_classes(range(len(places)), places)
    return [set(np.flatnonzero(numbers == number).tolist()) for number in sorted(set(numbers.tolist()))]


def test_ranks_in_the_same_place_but_for_data_parallelism_are_peers() -> None:
    places = [Place({"dp": rank % 4, "pp": rank // 8, "tp": rank // 4 % 2}, ()) for rank in range(16)]
    assert classes(places) == [{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}]


def test_where_no_position_is_declared_the_place_in_the_groups_tells() -> None:
    stages = [[rank, rank + 4] for rank in range(4)]
    places = [
        Place({}, (Membership("pp", tuple(stages[rank % 4])), Membership("dp", tuple(range(8))))) for rank in range(8)
    ]
    assert classes(places) == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_without_anything_declared_all_are_peers() -> None:
    assert classes([Place({}, ())] * 5) == [{0, 1, 2, 3, 4}]


def test_with_few_replicas_the_ranks_of_a_tensor_group_are_peers_too() -> None:
    places = [Place({"dp": rank // 4 % 2, "pp": rank // 8, "tp": rank % 4}, ()) for rank in range(16)]
    assert classes(places) == [set(range(8)), set(range(8, 16))]


def test_who_has_a_stage_of_a_pipeline_to_itself_is_alone_and_experts_are_not() -> None:
    """An expert's work changes with the tokens that it gets, so that its past tells nothing of its machine."""
    places = [Place({}, (), {"pp": stage}) for stage in range(3)]
    assert alone_in_stage(range(3), places, position_classes(range(3), places)).tolist() == [True] * 3
    twice = places * 2
    assert not alone_in_stage(range(6), twice, position_classes(range(6), twice)).any()
    experts = [Place({}, (), {"pp": rank // 2, "ep": rank % 2}) for rank in range(4)]
    assert not alone_in_stage(range(4), experts, position_classes(range(4), experts)).any()


def test_the_pairs_of_a_longer_pipeline_are_no_groups_of_it() -> None:
    """Each rank's recording names the two pairs in which it sends, and a place in one of them."""
    places = []
    for rank in range(4):
        pairs = [Membership("pp", (one, one + 1)) for one in range(3) if rank in (one, one + 1)]
        places.append(Place({"pp": rank % 2}, pairs, {"pp": rank}))
    assert classes(places) == [{0}, {1}, {2}, {3}]
    two = [Place({}, [Membership("pp", (0, 1))], {"pp": rank}) for rank in range(2)]
    assert classes(two) == [{0}, {1}]
