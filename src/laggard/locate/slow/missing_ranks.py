"""Ranks of the job about which no agent reports, or which make no steps, and whether the culprit may be among them.
Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.order_statistics import known_middle
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import ranks_text

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


def culprit_may_be_missing(timings: JobTimings, steps: Steps) -> Note | None:
    """A note where all ranks that are compared wait, so that one that is not may be what they wait for: it is not seen,
    or it takes part in collectives and makes no steps, as one that plays for others to learn from. None: none may."""
    stepless = timings.ranks[~np.isfinite(steps.busy).any(axis=0)].tolist()
    unseen = len(timings.ranks) < timings.world_size
    if not (unseen or stepless) or known_middle(steps.waited / steps.duration[:, None]) <= WAITING_RATIO:
        return None
    if unseen:
        return Note("unseen_ranks", "the ranks that are seen wait for others; the slow rank may be one that is not")
    return Note("unseen_ranks", _stepless_text(stepless), ranks=tuple(stepless)[:MAX_NAMED_RANKS])


def _stepless_text(ranks: Sequence[int]) -> str:
    has, whom = ("has", "it") if len(ranks) == 1 else ("have", "them")
    return f"the others wait, and {ranks_text(ranks)} {has} no steps to be compared by: they may wait for {whom}"
