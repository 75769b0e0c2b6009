"""Tells which stage of a pipeline takes longest where no rank elsewhere does its work. Pure.

More layers and a slower machine look alike in what is recorded, so that such a job is not called healthy.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import median, median_over_steps
from laggard.locate.slow.peers import confined, node_numbers
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import ranks_text, step_times_text

MIN_LONGER: Final = 1.25
"""The least ratio of the longest stage to the others that is told of: the first has the embedding, the last the
loss."""

MIN_STAGES: Final = 3
"""The least number of machines with stages of their own, where these have several ranks each."""


def longest_stage_notes(timings: JobTimings, steps: Steps) -> tuple[Note, ...]:
    """A note about the longest stage; empty where stages have peers elsewhere, or are about as long as each other."""
    stage = _stages_without_peers(timings, steps)
    known = np.unique(stage[stage >= 0])
    if len(known) < 2:
        return ()
    level = median_over_steps(steps.busy)
    busy = np.array([median(level[stage == each]) for each in known])
    place = int(np.nanargmax(busy))
    others = median(np.delete(busy, place))
    if not busy[place] > MIN_LONGER * others:
        return ()
    columns = np.flatnonzero(stage == known[place])
    ranks = tuple(timings.ranks[columns].tolist())
    its, elsewhere = ("its", "") if len(ranks) == 1 else ("their", "elsewhere ")
    times = step_times_text(float(busy[place]), others, f"{its} stage of the pipeline", "the others")
    text = (
        f"{ranks_text(ranks)}: {times}; no rank {elsewhere}does the same work: it has more layers, or its machine has"
        " always been slower"
    )
    return (Note("longest_stage", text, ranks=ranks[:MAX_NAMED_RANKS], node=timings.nodes[columns[0]]),)


def _stages_without_peers(timings: JobTimings, steps: Steps) -> NDArray[np.int64]:
    """[R]: the stage of each rank whose work nobody does on another machine; -1 of the others. Only where there are
    MIN_STAGES machines of stages: of two, the longer one has the loss."""
    if timings.alone is not None and timings.alone.sum() >= 2:
        return np.where(timings.alone, np.arange(len(timings.alone)), -1)
    stage, machine = steps.peers.number.astype(np.int64), node_numbers(timings.nodes)
    alone = confined(stage, machine)
    if len(np.unique(machine[alone])) < MIN_STAGES:
        return np.full(len(stage), -1)
    return np.where(alone, stage, -1)
