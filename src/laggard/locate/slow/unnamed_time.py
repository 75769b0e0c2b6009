"""Tells of a rank that the others wait for, and whose time belongs to no phase. Pure.

Such time of a single rank accuses nobody (NAMED_SHARE): it may be a wait that no record tells of. But where the others
wait longer by as much, the job is not well, and the script can say what it does there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import last_axis_median, median
from laggard.locate.slow.past import OTHER
from laggard.locate.slow.ranks import Slow, is_waited_for, slow_ranks
from laggard.locate.slow.steps import Steps
from laggard.model import Note
from laggard.text.words import step_times_text

MAX_NOTES: Final = 4
MIN_SHARE: Final = 0.5
"""The least share of a rank's excess that is time in no phase."""


def unnamed_time_notes(timings: JobTimings, steps: Steps) -> tuple[Note, ...]:
    """A note on each such rank, the slowest first. `steps`: in whose phases nobody is slow."""
    if not steps.phased:
        return ()
    found = slow_ranks(steps.with_other(), timings.nodes)
    told = [each for each in found if not (each.brief or each.whole_host) and is_waited_for(steps, each)]
    return tuple(filter(None, (_note(timings, steps, each) for each in told[:MAX_NOTES])))


def accuses(notes: Sequence[Note]) -> bool:
    """Whether one of the notes is on another rank than 0, which has work of its own in every script."""
    return any(rank != 0 for note in notes for rank in note.ranks)


def _note(timings: JobTimings, steps: Steps, each: Slow) -> Note | None:
    (column,) = each.columns
    same = steps.peers.number == steps.peers.number[column]
    peers = np.flatnonzero(same & (np.arange(len(same)) != column))
    unnamed = steps.phases[each.since :, :, OTHER]
    own, theirs = median(unnamed[:, column]), median(last_axis_median(unnamed[:, peers])) if len(peers) else 0.0
    if own - theirs < MIN_SHARE * each.excess:
        return None
    rank = int(timings.ranks[column])
    times = step_times_text(own, theirs, "no phase that has a name")
    to_do = "phase() of laggard.trainer_hooks names what its script does there"
    return Note("unnamed_time", f"rank {rank}: {times}, and they wait for it: {to_do}", (rank,), timings.nodes[column])
