"""Which ranks do the same work, by declared positions and by groups."""

from collections.abc import Sequence

import numpy as np

from laggard.locate.positions import Indices, Positions, Seat, own_indices


def positions(indices: Sequence[Indices]) -> Positions:
    """Of ranks with the indices that they declare."""
    return Positions.of([own_indices((), each, {}) for each in indices])


def classes(indices: Sequence[Indices]) -> list[set[int]]:
    numbers = positions(indices).positions
    assert numbers is not None
    return [set(np.flatnonzero(numbers == number).tolist()) for number in sorted(set(numbers.tolist()))]


def alone(indices: Sequence[Indices]) -> list[bool]:
    found = positions(indices).alone
    assert found is not None
    return [bool(each) for each in found]


def test_ranks_of_a_stage_are_peers_in_data_and_in_tensor_groups() -> None:
    declared = [{"dp": rank % 4, "pp": rank // 8, "tp": rank // 4 % 2} for rank in range(16)]
    assert classes(declared) == [set(range(8)), set(range(8, 16))]


def test_where_no_position_is_declared_the_place_in_the_groups_tells() -> None:
    seats = [(Seat("pp", 2, rank // 4), Seat("dp", 8, rank)) for rank in range(8)]
    assert [own_indices(each, {}, {}) for each in seats] == [{"pp": rank // 4} for rank in range(8)]


def test_the_largest_group_of_a_role_tells_and_a_declared_position_before_it() -> None:
    seats = [Seat("tp", 8, 5), Seat("mp", 2, 1)]
    assert own_indices(seats, {}, {}) == {"tp": 5}
    assert own_indices(seats, {"tp": 3, "slice": 1}, {"ep": 2}) == {"tp": 3, "slice": 1, "ep": 2}


def test_without_anything_declared_all_are_peers() -> None:
    assert classes([{}] * 5) == [{0, 1, 2, 3, 4}]


def test_with_few_replicas_the_ranks_of_a_tensor_group_are_peers_too() -> None:
    declared = [{"dp": rank // 4 % 2, "pp": rank // 8, "tp": rank % 4} for rank in range(16)]
    assert classes(declared) == [set(range(8)), set(range(8, 16))]


def test_who_has_a_stage_of_a_pipeline_to_itself_is_alone_and_experts_are_not() -> None:
    """An expert's work changes with the tokens that it gets, so that its past tells nothing of its machine."""
    stages = [{"pp": stage} for stage in range(3)]
    assert alone(stages) == [True] * 3
    assert not any(alone(stages * 2))
    assert not any(alone([{"pp": rank // 2, "ep": rank % 2} for rank in range(4)]))


def test_ranks_of_a_context_group_hold_the_same_parameters() -> None:
    replicas = positions([{"tp": rank % 2, "cp": rank // 2} for rank in range(4)]).replicas
    assert replicas is not None and replicas.tolist() == [0, 1, 0, 1]


def test_the_pairs_of_a_longer_pipeline_are_no_groups_of_it() -> None:
    """Each rank's recording names the two pairs in which it sends, and a place in one of them."""
    for rank in range(4):
        pairs = [Seat("pp", 2, int(rank == one + 1)) for one in range(3) if rank in (one, one + 1)]
        assert own_indices(pairs, {"pp": rank % 2}, {"pp": rank}) == {"pp": rank}
    assert own_indices([Seat("pp", 4, 3)], {}, {"pp": 1}) == {"pp": 3}
