"""A job's time is divided among its culprits: no second is given to two. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from laggard.model import Culprit

_STOPPING: Final = ("hung", "dead")
"""The kinds of culprits for which the whole job stands still."""


def shares(culprits: Sequence[Culprit], slowdown_ratio: float | None) -> list[float]:
    """The share of the job's time that each takes, at most 1 in all. While one stops the job, it takes everything, and
    several take equal parts. Of slow ones each takes its recoverable_ratio; together they take no more than the verdict
    says that all of them do, 1 - 1 / slowdown_ratio, where no single one takes more."""
    stopping = [culprit.kind in _STOPPING for culprit in culprits]
    if any(stopping):
        return [1 / sum(stopping) if stops else 0.0 for stops in stopping]
    wanted = [min(max(culprit.recoverable_ratio or 0.0, 0.0), 1.0) for culprit in culprits]
    together = 1 - 1 / slowdown_ratio if slowdown_ratio and slowdown_ratio > 1 else 1.0
    most = max(together, max(wanted, default=0.0))
    scale = min(1.0, most / sum(wanted)) if sum(wanted) > 0 else 1.0
    return [share * scale for share in wanted]
