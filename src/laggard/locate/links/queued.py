"""Tells slow links within machines from transfers in a queue behind others, which wait for a slow rank. Pure.

A collective within a machine that is launched behind one between machines takes longer, from its launch on, while that
one waits for a slow rank elsewhere. On the slow rank's own machine it does not: nobody there waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.model import Culprit

QUEUED_RATIO: Final = 2.0
"""The most times as long as a slow rank makes others wait that a transfer behind them takes longer: there may be two in
a row."""


def without_queued(links: Sequence[Culprit], slow: Sequence[Culprit], waited_share: float) -> Iterator[Culprit]:
    """The links without those within machines that have none of the `slow` ranks. `waited_share`: of the step, by how
    much a slow rank takes longer."""
    at = {culprit.node for culprit in slow}
    for link in links:
        is_within = link.node is not None and link.link is not None and link.link[0] == link.link[1]
        is_more = (link.recoverable_ratio or 0.0) > QUEUED_RATIO * waited_share
        if not slow or not is_within or link.node in at or is_more:
            yield link
