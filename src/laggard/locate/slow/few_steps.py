"""The hints of a profile of a few steps, where they are too few for a verdict. Pure."""

from __future__ import annotations

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.slow.steps import steps_needed
from laggard.model import Note
from laggard.text.words import counted

MIN_WAIT_DIFFERENCE = 0.05
"""The least share of the time by which the rank that waited least has waited less than the next. Our own choice: a
single garbage collection is as much of a step, so that it is a hint and no more."""


def least_wait_notes(timings: JobTimings) -> tuple[Note, ...]:
    """The note on the rank that waited least in collectives, as a slow one does; nothing where nobody stands out, or
    nothing is known."""
    seconds, waited = np.nansum(timings.step_seconds, axis=0), np.nansum(timings.waited_seconds, axis=0)
    known = np.flatnonzero(seconds > 0)
    if not timings.profiled or not timings.waits_recorded or len(known) < 2:
        return ()
    shares = waited[known] / seconds[known]
    order = np.argsort(shares, kind="stable")
    least, second = float(shares[order[0]]), float(shares[order[1]])
    if second - least < MIN_WAIT_DIFFERENCE:
        return ()
    rank = int(timings.ranks[known[order[0]]])
    text = (
        f"in {counted(len(timings.steps), 'step')}, rank {rank} waited least in collectives, {least:.0%} of the time, "
        f"the next {second:.0%}: a hint at who is slow; profile {steps_needed(timings)} steps or more to know"
    )
    return (Note("least_wait", text.replace("%", " %"), ranks=(rank,), node=timings.nodes[known[order[0]]]),)
