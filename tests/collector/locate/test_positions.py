"""Which ranks do the same work, by declared positions and by groups."""

from __future__ import annotations

import numpy as np

from laggard.collector.locate.positions import NOWHERE, Membership, Place, position_classes


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
    assert classes([NOWHERE] * 5) == [{0, 1, 2, 3, 4}]


def test_with_few_replicas_the_ranks_of_a_tensor_group_are_peers_too() -> None:
    places = [Place({"dp": rank // 4 % 2, "pp": rank // 8, "tp": rank % 4}, ()) for rank in range(16)]
    assert classes(places) == [set(range(8)), set(range(8, 16))]
