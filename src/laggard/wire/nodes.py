"""The collector's documents about its nodes."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from laggard.model import Finding

MAX_RING_NODES = 256
MAX_RING_PAIRS = 4096
"""The most pairs of one ring that are told of: about 200 kB."""


class RingPairs(msgspec.Struct, frozen=True):
    """The measurements of the last ring between `nodes`, by name, in all-reduces of `size_bytes`, each pair alone:
    `pairs` are two places in `nodes` and the best bus bandwidth in bytes per second, None where each try failed.
    `slow_links` and `slow_nodes` are those that the ring's verdict calls slow, by place."""

    nodes: tuple[str, ...]
    size_bytes: int
    pairs: tuple[tuple[int, int, float | None], ...]
    slow_nodes: tuple[int, ...] = ()
    slow_links: tuple[tuple[int, int], ...] = ()


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
    ring_age_seconds: float | None = None
    """The time since a ring measured the node, as its agent tells; None: it tells of none."""
    ring_pairs: RingPairs | None = None
    """The pairs of a node that led its last ring, where that measured pairs."""
    skipped_as: int | None = None
    """Place of its line in the document's `skipped`; null: nothing was skipped there, no report is known, or the line
    is one of too many."""


class NodesDocument(msgspec.Struct, frozen=True):
    """`laggard.nodes/1`. Of the `total` nodes that were asked for, `answering` answer and the checks of `failing` fail;
    `nodes` are the first of them where fewer were asked for. `unnamed`: agents of the whole fleet that never said which
    node they are on. `compared`: how the nodes differ from others of the same hardware, a line each.
    `job`: the one on whose nodes this is; null where it is on all, also because nothing says where a job runs.
    `skipped`: how many of an agent's checks judged nothing, since they do not apply there, and the most frequent
    reasons, a line for all nodes alike (`skipped_as`), 256 lines at most. `culprits`: by name, the nodes with a culprit
    of a job that runs, and what it is."""

    nodes: tuple[NodeRow, ...]
    total: int = 0
    answering: int = 0
    failing: int = 0
    unnamed: int = 0
    compared: tuple[str, ...] = ()
    job: str | None = None
    skipped: tuple[str, ...] = ()
    culprits: dict[str, str] = {}
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
    """True where the collector knows that the asking node fails. Until then other nodes do not count it, so it
    waits."""
    asker_known: bool = True
    """True where an agent has reported under the asking node's name."""
    asker_is_well: bool = False
    """True where the asking node's agent answers, and reports nothing critical: what was granted before is over."""
    schema: str = "laggard.drains/1"


class RingsDocument(msgspec.Struct, frozen=True):
    """`laggard.rings/1`: which nodes are to measure each other next (`rings`, nodes by name), so that each is measured
    once in `period_seconds`. Of the nodes that answer, `due` are free and were measured too long ago, `measured` lately
    enough, `busy` run ranks, `failing` fail their checks; `silent` do not answer."""

    period_seconds: float
    rings: tuple[tuple[str, ...], ...]
    due: int
    measured: int
    busy: int
    failing: int
    silent: int
    schema: str = "laggard.rings/1"


class NodeFinding(Struct, frozen=True):
    """`url`: of the agent that reported it. `node`: the name under which the node's ranks are known."""

    url: str
    node: str
    finding: Finding
