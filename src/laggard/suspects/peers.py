"""The peers with which a suspect is measured: nodes that nothing speaks against. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from laggard.model import Verdict
from laggard.text.words import natural
from laggard.wire.nodes import NodeRow

MIN_PEERS: Final = 2
"""The least number of peers: what is usual is measured among them."""

MAX_PEERS: Final = 3
"""The number of peers where as many are free: with three, one that is slow itself hides nothing."""


def good_peers(suspect: str, rows: Iterable[NodeRow], suspects: Collection[str]) -> list[str]:
    """The nodes that pass their checks and are not suspected themselves: those first that a ring measured last, which
    says the most of them. Whether they are free the scheduler knows."""
    good = {
        row.node: math.inf if row.ring_age_seconds is None else row.ring_age_seconds
        for row in rows
        if row.node and row.state == "up" and row.verdict == Verdict.OK.value
    }
    names = (name for name in good if name != suspect and name not in suspects)
    return sorted(names, key=lambda name: (good[name], natural(name)))
