"""Ranks of the job about which no agent reports, and whether the culprit may be among them. Pure."""

from __future__ import annotations

import itertools

from laggard.locate.job_timings import JobTimings
from laggard.locate.order_statistics import known_middle
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Note

WAITING_RATIO = 0.08
"""The share of the step from which on ranks that all wait may wait for one that is not seen."""


def missing_ranks_notes(timings: JobTimings) -> list[Note]:
    """One note that names the missing ranks; none where there are none."""
    if len(timings.ranks) >= timings.world_size:
        return []
    seen = set(timings.ranks.tolist())
    missing = itertools.islice((rank for rank in range(timings.world_size) if rank not in seen), MAX_NAMED_RANKS)
    text = f"{len(timings.ranks)} of {timings.world_size} ranks are seen"
    return [Note("partial", text, ranks=tuple(missing))]


def culprit_may_be_missing(timings: JobTimings, steps: Steps) -> bool:
    """Whether all known ranks wait, so that a missing one may be what they wait for."""
    if len(timings.ranks) >= timings.world_size:
        return False
    return bool(known_middle(steps.waited / steps.duration[:, None]) > WAITING_RATIO)
