"""Ranks of the job about which no agent reports, or of which too few steps are known, and whether the culprit may be
among them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import median
from laggard.locate.slow.significance import MIN_KNOWN
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
    it takes part in collectives and makes no steps, as one that plays for others to learn from, or the records of most
    of its steps are lost. None: none may."""
    known = np.isfinite(steps.busy).sum(axis=0)
    stepless = timings.ranks[known < MIN_KNOWN].tolist()
    unseen = len(timings.ranks) < timings.world_size
    if not (unseen or stepless) or median(steps.waited / steps.duration[:, None]) <= WAITING_RATIO:
        return None
    if unseen:
        return Note("unseen_ranks", "the ranks that are seen wait for others; the slow rank may be one that is not")
    text = _stepless_text(stepless, bool(known[known < MIN_KNOWN].any()))
    return Note("unseen_ranks", text, ranks=tuple(stepless)[:MAX_NAMED_RANKS])


def _stepless_text(ranks: Sequence[int], some: bool) -> str:
    """`some`: whether a few steps of one of them are known."""
    has, whom = ("has", "it") if len(ranks) == 1 else ("have", "them")
    steps = "too few steps" if some else "no steps"
    return f"the others wait, and {ranks_text(ranks)} {has} {steps} to be compared by: they may wait for {whom}"
