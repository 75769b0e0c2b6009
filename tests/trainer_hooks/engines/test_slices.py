"""The slices of the true reduce-scatter: whose they are, whether sending them pays, in which order they are added up.
test_reduce_scatter.py trains with it."""

from __future__ import annotations

import pytest
from support.later import Later

scatter = Later("laggard.trainer_hooks.engines.deepspeed_reduce_scatter")
torch = Later("torch")

pytestmark = pytest.mark.torch


def test_a_bucket_is_cut_into_the_slices_of_its_owners() -> None:
    slices = scatter.slices_of([5, 2, 4, 3], [1, 0, 1, 2], 4)
    assert slices == (14, (((5, 2),), ((0, 5), (7, 4)), ((11, 3),), ()))
    assert slices.counts() == [2, 9, 3, 0]


@pytest.mark.parametrize(
    ("counts", "moves_less"),
    [([4, 4, 4, 4], True), ([7, 3, 3, 3], True), ([8, 3, 3, 2], False), ([16, 0, 0, 0], False)],
)
def test_a_bucket_is_scattered_where_less_goes_over_the_busiest_link(counts: list[int], moves_less: bool) -> None:
    """The busiest rank receives 3 times its share; in a ring all-reduce of 16 elements each receives 24."""
    slices = scatter.slices_of(counts, range(4), 4)
    assert scatter.scatters(slices) == moves_less == (3 * max(counts) < 24)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("elements", [1, 7, 1000, 3_000_001])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_each_element_is_added_up_once_beginning_with_one_rank(ranks: int, elements: int, element_bytes: int) -> None:
    orders = scatter.first_adders(elements, element_bytes, ranks)
    places = [place for begin, end, _ in orders for place in (begin, end)]
    assert places[0] == 0 and places[-1] == elements and places[1:-1:2] == places[2::2], "one after the other"
    assert [rank for _, _, rank in orders] == [(number - 1) % ranks for number in range(len(orders))]


def test_the_sums_are_those_of_the_order_in_which_gloo_adds() -> None:
    """Three values of which two cancel each other out: what is left of the third tells which came first."""
    from laggard.trainer_hooks.engines.deepspeed_reduce_scatter import _added_up

    large, orders = 2.0**24, [(0, 2, 1), (2, 5, 0)]
    values = torch.tensor([[large] * 3, [1.0] * 3, [-large] * 3])
    summed = _added_up(values, [(1, 3)], orders)
    # 1 + 2**24 is 2**24 in 32 bits: from rank 1 down the one is lost, from rank 0 down it comes last.
    assert summed.tolist() == [0.0, 1.0, 1.0]
