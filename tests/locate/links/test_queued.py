"""Transfers within machines that stand behind others which wait for a slow rank elsewhere."""

from __future__ import annotations

import pytest

from laggard.locate.links.bursts import without_queued
from laggard.model import Culprit


def within(node: str, saved: float) -> Culprit:
    end = {"node": node}
    return Culprit("slow_link", (1,), node=node, link=(end, end), recoverable_ratio=saved)


def elsewhere(ratio: float) -> Culprit:
    return Culprit("slow_link", (1, 2), nodes=("n2", "n3"), recoverable_ratio=0.05, slowdown_ratio=ratio)


SLOW = Culprit("slow_compute", (9,), node="n1")
WORSE = Culprit("slow_compute", (9,), node="n1", recoverable_ratio=0.9)
BETWEEN = Culprit("slow_link", (1, 2), link=({"node": "n2"}, {"node": "n3"}), recoverable_ratio=0.2)


@pytest.mark.parametrize(
    ("link", "slow", "stays"),
    [
        pytest.param(within("n2", 0.2), [SLOW], False, id="a slow rank elsewhere"),
        pytest.param(within("n1", 0.2), [SLOW], True, id="on its own machine"),
        pytest.param(within("n2", 0.5), [SLOW], True, id="more than waiting explains"),
        pytest.param(within("n2", 0.2), [], True, id="no slow rank"),
        pytest.param(BETWEEN, [SLOW], True, id="between machines"),
        pytest.param(within("n1", 0.05), [WORSE], False, id="on its own machine, for far less"),
        pytest.param(BETWEEN, [WORSE], True, id="between other machines, for far less"),
        pytest.param(elsewhere(1.5), [WORSE], False, id="elsewhere, little slower, for next to nothing"),
        pytest.param(elsewhere(3.0), [WORSE], True, id="elsewhere, far slower"),
    ],
)
def test_links_within_machines_are_named_where_no_slow_rank_explains_them(
    link: Culprit, slow: list[Culprit], stays: bool
) -> None:
    assert list(without_queued([link], slow, waited_share=0.15)) == [link] * stays
