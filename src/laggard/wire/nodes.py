"""What the collector says of its nodes."""

from __future__ import annotations

import msgspec


class NodeRow(msgspec.Struct, frozen=True):
    """One agent as its collector sees it."""

    url: str
    node: str | None
    state: str  # up, down, slow, garbage, waiting
    reason: str
    last_seen_seconds: float | None
    verdict: str | None
    findings: tuple[str, ...]
    ranks: tuple[int, ...]


class NodesDocument(msgspec.Struct, frozen=True):
    nodes: tuple[NodeRow, ...]
    schema: str = "laggard.nodes/1"


class DrainsDocument(msgspec.Struct, frozen=True):
    """Whether one more failing node may be drained. `failing`: the nodes whose checks fail now, without the one that
    asks; of `answering` nodes at most `cap` may be out at once. `reason` says why not, or under which numbers."""

    may_drain: bool
    reason: str
    nodes: int
    answering: int
    failing: int
    cap: int
    max_drain_ratio: float
    asker_fails: bool = False  # whether the collector knows it to: who is not counted yet by others has to wait
    schema: str = "laggard.drains/1"
