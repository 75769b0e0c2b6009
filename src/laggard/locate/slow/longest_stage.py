"""Tells which stage of a single pipeline takes longest: it may have more layers, or a slower machine. Pure.

The two look alike in what is recorded, so that such a job is not called healthy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.slow.medians import median, median_over_steps
from laggard.locate.slow.steps import Steps
from laggard.model import Note
from laggard.text.words import step_times_text

MIN_LONGER: Final = 1.25
"""The least ratio of the longest stage to the others that is told of: the first has the embedding, the last the
loss."""


def longest_stage_notes(timings: JobTimings, steps: Steps) -> tuple[Note, ...]:
    """A note about the longest stage; empty where stages have peers, or are about as long as each other."""
    if timings.alone is None or timings.alone.sum() < 2:
        return ()
    busy = np.where(timings.alone, median_over_steps(steps.busy), np.nan)
    column = int(np.nanargmax(busy))
    others = median(np.delete(busy, column))
    if not busy[column] > MIN_LONGER * others:
        return ()
    rank = int(timings.ranks[column])
    times = step_times_text(float(busy[column]), others, "its stage of the pipeline", "the others")
    text = (
        f"rank {rank}: {times}; no rank does the same work: it has more layers, or its machine has always been slower"
    )
    return (Note("longest_stage", text, ranks=(rank,), node=timings.nodes[column]),)
