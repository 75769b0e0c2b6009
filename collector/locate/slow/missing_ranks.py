"""Ranks of the job that were not seen, and whether the slow one may be among them. Pure."""

from __future__ import annotations

import numpy as np

from laggard.collector.locate.job_timings import Evidence
from laggard.collector.locate.slow.ranks import SLOW_RATIO
from laggard.collector.locate.slow.steps import Steps
from laggard.model import Note


def unseen_ranks(evidence: Evidence) -> list[Note]:
    """A note that names them, where there are any."""
    missing = evidence.world_size - len(evidence.ranks)
    if missing <= 0:
        return []
    unseen = sorted(set(range(evidence.world_size)) - {int(rank) for rank in evidence.ranks})[:64]
    text = f"{len(evidence.ranks)} of {evidence.world_size} ranks are seen"
    return [Note("partial", text, ranks=tuple(unseen))]


def hidden_waits(evidence: Evidence, steps: Steps) -> bool:
    """Whether a rank that is not seen may be what all that are seen wait for."""
    if len(evidence.ranks) >= evidence.world_size:
        return False
    return bool(np.nanmedian(steps.waited / steps.duration[:, None]) > SLOW_RATIO)
