"""A ring as an order to a process of its own (rings/child.py), and how it ended: whoever orders one loads no ring."""

from __future__ import annotations

import msgspec

from laggard.model import Finding
from laggard.rings.membership import Membership
from laggard.wire.nodes import RingPairs

MODULE = "laggard.rings.child"
MAX_BYTES = 1 << 20
"""The most of an order, and of an answer."""


class NodeShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the results that one node of a gang learns. `findings`: those that accuse it; `others`: lines about
    who else is accused, or did not come; `unknown`: why this node could not be judged; `judged`: how many nodes were
    measured."""

    findings: tuple[Finding, ...]
    others: tuple[str, ...]
    unknown: str
    judged: int


class RingOrder(msgspec.Struct, frozen=True):
    """A ring in pairs in which this node has `place`. `tokens`: of which this node shows the first. `seconds`: for
    measuring; `deadline_seconds`: for all of it. `modest`: its processes take what no job wants. `node`: its name in
    the ring; empty: the machine's own."""

    place: Membership
    tokens: tuple[str, ...]
    device: str
    seconds: float
    join_seconds: float
    deadline_seconds: float
    modest: bool = False
    node: str = ""


class RingEnd(msgspec.Struct, frozen=True):
    """`status` as of `laggard ring`; `share`: what the ring found about this node; None: it came to no end here.
    `pairs`: what was measured in pairs, on the node that led."""

    status: int
    text: str
    share: NodeShare | None = None
    pairs: RingPairs | None = None
