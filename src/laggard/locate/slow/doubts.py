"""What keeps a job from being called healthy though nobody is accused: time in no phase, ranks that are missing, and
hints of few steps. Pure.

Where phases have names, time outside of them accuses no single rank: it may be a wait that no record tells of. But
where the others wait longer by as much, the job is not well, and the script can say what it does there; where stacks
say that it is in the script's own code, it works.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from laggard.kit.words import counted, ranks_text, seconds_text
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import median
from laggard.locate.shares import HALF
from laggard.locate.slow.ranks import Slow, is_waited_for, slow_ranks
from laggard.locate.slow.steps import Steps, steps_needed
from laggard.locate.slow.tested import DOUBTED_COST, MIN_PART
from laggard.model import MAX_NAMED_RANKS, Note

MAX_NOTES: Final = 4


def slow_in_no_phase(timings: JobTimings, steps: Steps) -> list[Slow]:
    """The ranks and machines that others wait for, where all of their time is judged. `steps`: in whose phases nobody
    is slow."""
    if not steps.phased:
        return []
    found = slow_ranks(steps.with_other(), timings.nodes).slow
    return [each for each in found if is_waited_for(steps, each, found)][:MAX_NOTES]


def works_there(timings: JobTimings, steps: Steps, each: Slow) -> bool:
    """Whether stacks explain half of what it takes longer in no phase."""
    cost = float(each.series.sum()) / float(steps.duration.sum())
    ranks = (int(timings.ranks[column]) for column in each.columns)
    return all(timings.own_code.get(rank, 0.0) > HALF * cost for rank in ranks)


def unnamed_time_note(timings: JobTimings, each: Slow) -> Note:
    ranks = tuple(sorted(int(timings.ranks[column]) for column in each.columns))
    text = (
        f"{ranks_text(ranks)}: {seconds_text(each.excess)} a step more than its peers in no phase that has a name, and"
        " they wait for it: phase() of laggard.trainer_hooks names what its script does there"
    )
    return Note("unnamed_time", text, ranks[:MAX_NAMED_RANKS], timings.nodes[each.columns[0]])


WAITING_RATIO: Final = 0.08
"""The share of the step from which on ranks that all wait may wait for one that is not seen. At DOUBTED_COST two
healthy jobs of which some ranks are seen are no longer called so."""


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
    stepless = timings.ranks[known < MIN_PART].tolist()
    unseen = len(timings.ranks) < timings.world_size
    if not (unseen or stepless) or median(steps.waited / steps.duration[:, None]) <= WAITING_RATIO:
        return None
    if unseen:
        return Note("unseen_ranks", "the ranks that are seen wait for others; the slow rank may be one that is not")
    has, whom = ("has", "it") if len(stepless) == 1 else ("have", "them")
    text = (
        f"the others wait, and {ranks_text(stepless)} {has} too few steps to be compared by: they may wait for {whom}"
    )
    return Note("unseen_ranks", text, ranks=tuple(stepless)[:MAX_NAMED_RANKS])


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
    if second - least < DOUBTED_COST:
        return ()
    rank = int(timings.ranks[known[order[0]]])
    text = (
        f"in {counted(len(timings.steps), 'step')}, rank {rank} waited least in collectives, {least:.0%} of the time, "
        f"the next {second:.0%}: a hint at who is slow; profile {steps_needed(timings)} steps or more to know"
    )
    return (Note("least_wait", text.replace("%", " %"), ranks=(rank,), node=timings.nodes[known[order[0]]]),)
