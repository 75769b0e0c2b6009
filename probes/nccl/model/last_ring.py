"""The result of the last ring in which this node took part, as a file."""

from __future__ import annotations

from typing import Final

import msgspec

from laggard.model import Finding
from laggard.wire.nodes import RingPairs

LAST_RING_PATH: Final = "/run/laggard/rings/last_ring.json"


class LastRing(msgspec.Struct, frozen=True):
    """`at`: when it ended, Unix time; `nodes`: how many were measured; `findings`: those that accuse this node.
    `pairs`: on the node that led the ring, where it measured pairs."""

    at: float
    nodes: int
    findings: tuple[Finding, ...]
    pairs: RingPairs | None = None
