"""Transfers of another kind tell that the network as a whole is as it was, by their time or by their size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from laggard.locate.links.channels import Category
from laggard.locate.links.own_past import Change, risen_channels

STEPS, BEGIN = 40, 20
ACTIVE = np.arange(STEPS) >= BEGIN
CHANGE = Change(ACTIVE, ~ACTIVE, BEGIN, 0.2, 0.3, lasts=True)


def category(number: int, usual: float, now: float, size: float) -> Category:
    noise = np.random.default_rng(number).normal(1, 0.01, (STEPS, 1))
    times = np.where(ACTIVE[:, None], now, usual) * noise
    return Category((number,), times, times, size)


@pytest.mark.parametrize(
    ("usual", "now", "size", "steady"),
    [
        pytest.param(0.001, 0.001, 10.0, True, id="as long"),
        pytest.param(0.00005, 0.00005, 1000.0, True, id="short, and as many bytes"),
        pytest.param(0.00005, 0.00005, 0.001, False, id="short, and few bytes"),
        pytest.param(0.001, 0.01, 1000.0, False, id="slower as well"),
    ],
)
def test_transfers_that_would_be_slower_as_well_and_are_not_are_steady(
    usual: float, now: float, size: float, steady: bool
) -> None:
    steps: Any = SimpleNamespace(duration=np.where(ACTIVE, 0.6, 0.4))
    rose, other = category(0, 0.002, 0.2, 1000.0), category(1, usual, now, size)
    found = risen_channels([rose, other], steps, CHANGE)
    assert found.rises.keys() >= {0}
    assert (1 in found.steady) is steady
