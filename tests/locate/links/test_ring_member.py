"""Of a ring with a slow edge, the member whose adapter it is: what else goes through that takes longer."""

from __future__ import annotations

import numpy as np
import pytest

from laggard.locate.links.channels import PAIR_ROLE, Category, Channel, Ways
from laggard.locate.links.link_culprits import slow_beside_others

PER_NODE, STAGE_NODES, STEPS = 4, 3, 10
FIRST_STAGE = PER_NODE * STAGE_NODES
RANKS = 2 * FIRST_STAGE
MACHINE = np.arange(RANKS) // PER_NODE
RING = frozenset(range(1, FIRST_STAGE, PER_NODE))
"""The ranks of the second place on each machine of the first stage; each sends to one of the second stage."""


def ways(longer: dict[int, float], machines: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Ways:
    """The sends of ranks of the first stage, which take so many times as long, and as those of their machine."""
    channels = [Channel("", PAIR_ROLE, (rank, rank + FIRST_STAGE)) for rank in range(FIRST_STAGE)]
    level = np.array([longer.get(rank, 1.0) * machines[rank // PER_NODE] for rank in range(FIRST_STAGE)])
    seconds = 0.02 * level * np.random.default_rng(1).normal(1, 0.01, (STEPS, FIRST_STAGE))
    return Ways(channels, [Category(tuple(range(FIRST_STAGE)), seconds, seconds)])


@pytest.mark.parametrize("machines", [(1.0, 1.0, 1.0), (2.0, 1.0, 2.0)], ids=["even", "two machines behind a switch"])
def test_the_member_whose_sends_take_longer_than_others_of_its_machine_is_told(machines: tuple[float, ...]) -> None:
    assert slow_beside_others(ways({5: 1.3}, machines), MACHINE, RING) == 5


@pytest.mark.parametrize(
    "longer",
    [
        pytest.param({}, id="all alike"),
        pytest.param({5: 1.3, 9: 1.3}, id="two members"),
        pytest.param({5: 1.3, 9: 1.08}, id="another nearly so"),
        pytest.param({6: 1.3}, id="a rank that is no member"),
        pytest.param(dict.fromkeys(range(4, 8), 1.3), id="the whole machine"),
    ],
)
def test_else_none_is(longer: dict[int, float]) -> None:
    assert slow_beside_others(ways(longer), MACHINE, RING) is None


def test_pairs_that_have_none_beside_them_tell_nothing() -> None:
    few = ways({5: 1.3})
    some = [Category((1, 5, 9), *(few.categories[0].most[:, [1, 5, 9]],) * 2)]
    assert slow_beside_others(Ways(few.channels, some), MACHINE, RING) is None
