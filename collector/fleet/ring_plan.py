"""The nodes that are to measure each other next, so that each takes part in a ring once in a period. Pure.

Who asks (a scheduler's script, a person) starts the rings: the collector starts nothing. That a node runs no rank that
laggard sees does not say that it is free, which the scheduler knows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import structs

from laggard.model import Verdict
from laggard.wire.nodes import NodeRow, RingsDocument

MIN_RING_NODES: Final = 3
"""The least number of a ring's nodes: of fewer it cannot tell which one is slow."""

MAX_RING_NODES: Final = 32
"""The largest number of a ring's nodes: among more, not all links are measured."""

_MAX_RINGS: Final = 512


def plan_rings(
    nodes: Iterable[NodeRow], period_seconds: float, ring_nodes: int, suspects: Collection[str] = ()
) -> RingsDocument:
    """Puts the nodes that are due into rings of `ring_nodes`, who has waited longest first; fewer than MIN_RING_NODES
    that are left over take along others that are free, who have waited longest of those. A node that fails its checks
    is none to compare others with, and is left out. `suspects`: those to which a job's slow link leads are as those
    that no ring has measured yet."""
    rows = (structs.replace(row, ring_age_seconds=None) if row.node in suspects else row for row in nodes)
    named = {row.node: row for row in rows if row.node}
    answering = {name: row for name, row in named.items() if row.state == "up"}
    failing = {name for name, row in answering.items() if row.verdict == Verdict.FAIL.value}
    busy = {name for name, row in answering.items() if row.ranks} - failing
    free = sorted(answering.keys() - failing - busy, key=lambda name: (-_age(answering[name]), name))
    due = [name for name in free if _age(answering[name]) >= period_seconds]
    rings = [tuple(due[at : at + ring_nodes]) for at in range(0, len(due), ring_nodes)]
    if rings and len(rings[-1]) < MIN_RING_NODES:
        spare = [name for name in free if name not in rings[-1]]
        taken = spare if len(rings) == 1 else [name for name in spare if name not in due] or spare
        rings[-1] = (*rings[-1], *taken[: MIN_RING_NODES - len(rings[-1])])
    return RingsDocument(
        period_seconds=period_seconds,
        rings=tuple(ring for ring in rings[:_MAX_RINGS] if len(ring) >= MIN_RING_NODES),
        due=len(due),
        measured=sum(_age(row) < period_seconds for row in answering.values()),
        busy=len(busy),
        failing=len(failing),
        silent=len(named) - len(answering),
    )


def _age(row: NodeRow) -> float:
    return math.inf if row.ring_age_seconds is None else row.ring_age_seconds
