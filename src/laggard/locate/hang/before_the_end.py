"""Finds who hung before a job was killed, by where its ranks stood as their recordings tell it last. Pure.

A rank that finishes no step says again and again where it stands (docs/contracts.md), and a process that is stopped
says nothing. No clock is compared with another's: ranks of one job finish a step within a step's time of each other, so
who fell silent first is told by for how long each could still say that it finished none.
"""

from __future__ import annotations

import dataclasses

from msgspec import structs

from laggard.locate.hang.hangs import hung_ranks
from laggard.locate.hang.waits import least_seconds
from laggard.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import Note


def hung_before_the_end(timings: JobTimings, step_seconds: float | None) -> PartialVerdict:
    """The ranks that others waited for when the job was killed; where it still runs, when it recorded its last.
    `step_seconds`: as of hung_ranks()."""
    told = [beat for beat in timings.last_beats if beat is not None]
    if timings.live or not told:
        return NOTHING_FOUND
    longest = max(beat.quiet_seconds for beat in told) - least_seconds(step_seconds)
    states = tuple(
        state if beat is None else _state(state, beat, max(0.0, longest - beat.quiet_seconds))
        for state, beat in zip(timings.states, timings.last_beats, strict=True)
    )
    ended = not any(state.state == "running" for state in timings.states)
    found = hung_ranks(dataclasses.replace(timings, states=states), step_seconds, ended)
    return _without_those_that_wait(timings, found)


def _without_those_that_wait(timings: JobTimings, found: PartialVerdict) -> PartialVerdict:
    """`found`, with a note in place of culprits that stood in a collective, where it cannot be told that they were the
    first to fall silent: they may have waited for a rank of which nothing is recorded, or, in the first step, have
    started later than the others."""
    unseen = len(timings.ranks) < timings.world_size
    first_step = any(state.step is None for state in timings.states)
    sure = tuple(culprit for culprit in found.culprits if culprit.phase != "collective")
    if not (unseen or first_step) or len(sure) == len(found.culprits):
        return found
    if sure:
        return PartialVerdict(sure, found.notes)
    missing = "the first to stop may be one of which nothing is recorded"
    late = "who stopped first cannot be told: no step was finished, and ranks start at different times"
    why = missing if unseen else late
    text = f"the ranks that are seen stood in a collective when their recordings ended; {why}"
    return PartialVerdict(notes=(Note("first_unseen", text), *found.notes))


def _state(state: RankState, last: LastBeat, age: float) -> RankState:
    """The rank as it was just before the end; `age`: for how long at least it had been silent."""
    asked = last.beat.groups_age_seconds
    beat = structs.replace(last.beat, age_seconds=age, groups_age_seconds=None if asked is None else asked + age)
    return RankState("running", state.step, last.phase, last.in_flight, state.stopped, beat)
