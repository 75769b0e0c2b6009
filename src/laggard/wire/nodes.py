"""The collector's documents about its nodes."""

from __future__ import annotations

import msgspec


class NodeRow(msgspec.Struct, frozen=True):
    """One agent as its collector last found it. `ranks` are those of its node; `findings` are codes."""

    url: str
    node: str | None
    state: str  # up, down, slow, garbage, waiting
    reason: str
    last_seen_seconds: float | None
    verdict: str | None
    findings: tuple[str, ...]
    ranks: tuple[int, ...]


class NodesDocument(msgspec.Struct, frozen=True):
    """`laggard.nodes/1`."""

    nodes: tuple[NodeRow, ...]
    schema: str = "laggard.nodes/1"


class DrainsDocument(msgspec.Struct, frozen=True):
    """`laggard.drains/1`: whether one more failing node may be drained. `failing` counts the nodes whose checks fail
    now, without the node that asks; of `answering` nodes at most `cap` may be out at once. `reason` says why not, or
    under which numbers."""

    may_drain: bool
    reason: str
    nodes: int
    answering: int
    failing: int
    cap: int
    max_drain_ratio: float
    asker_fails: bool = False
    """Whether the collector knows that the asking node fails. Until then other nodes do not count it, so it waits."""
    schema: str = "laggard.drains/1"
