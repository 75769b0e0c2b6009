"""Tells slow links from transfers that take longer for a slow rank's sake. Pure.

A collective within a machine that is launched behind one between machines takes longer, from its launch on, while that
one waits for a slow rank elsewhere. On the slow rank's own machine it does not: nobody there waits. But what its ranks
send comes later, into other traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.locate.links.slow_channels import CHANNEL_PAIR_RATIO
from laggard.model import Culprit

QUEUED_RATIO: Final = 2.0
"""The most times as long as a slow rank makes others wait that a transfer behind them takes longer: there may be two in
a row."""


SHADOW_SHARE: Final = 0.25
"""The share of what a slow rank costs below which links of its own machine are no culprits beside it."""


FAR_SHADOW_SHARE: Final = 0.1
"""The same of links elsewhere that take less than CHANNEL_PAIR_RATIO times as long as their equals: where one stage of
a pipeline is late, others meet other traffic than they would."""


def without_queued(links: Sequence[Culprit], slow: Sequence[Culprit], waited_share: float) -> Iterator[Culprit]:
    """The links without those within machines that have none of the `slow` ranks, and without those that cost far less
    and begin or end at the machine of one, or are little slower than others. `waited_share`: of the step, by how much a
    slow rank takes longer."""
    at = {culprit.node for culprit in slow}
    longest = max((culprit.recoverable_ratio or 0.0 for culprit in slow), default=0.0)
    for link in links:
        saved = 1.0 if link.recoverable_ratio is None else link.recoverable_ratio
        if saved < SHADOW_SHARE * longest and at & {link.node, *link.nodes}:
            continue
        if saved < FAR_SHADOW_SHARE * longest and (link.slowdown_ratio or 0.0) < CHANNEL_PAIR_RATIO:
            continue
        is_within = link.node is not None and link.link is not None and link.link[0] == link.link[1]
        is_more = (link.recoverable_ratio or 0.0) > QUEUED_RATIO * waited_share
        if not slow or not is_within or link.node in at or is_more:
            yield link
