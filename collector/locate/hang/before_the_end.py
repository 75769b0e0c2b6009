"""Finds who hung before a job was killed, by where its ranks stood as their recordings tell it last. Pure.

A rank that finishes no step says again and again where it stands (docs/contracts.md), and a process that is stopped
says nothing. No clock is compared with another's: ranks of one job finish a step within a step's time of each other, so
who fell silent first is told by for how long each could still say that it finished none.
"""

from __future__ import annotations

import dataclasses

from msgspec import structs

from laggard.collector.locate.hang.hangs import hung_ranks
from laggard.collector.locate.hang.waits import least_seconds
from laggard.collector.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.collector.locate.partial_verdict import NOTHING_FOUND, PartialVerdict


def hung_before_the_end(timings: JobTimings, step_seconds: float | None) -> PartialVerdict:
    """The ranks that others waited for when the job was killed. `step_seconds`: as of hung_ranks()."""
    told = [beat for beat in timings.last_beats if beat is not None]
    if timings.live or not told:
        return NOTHING_FOUND
    longest = max(beat.quiet_seconds for beat in told) - least_seconds(step_seconds)
    states = tuple(
        state if beat is None else _state(state, beat, max(0.0, longest - beat.quiet_seconds))
        for state, beat in zip(timings.states, timings.last_beats, strict=True)
    )
    return hung_ranks(dataclasses.replace(timings, states=states), step_seconds, ended=True)


def _state(state: RankState, last: LastBeat, age: float) -> RankState:
    """The rank as it was just before the end; `age`: for how long at least it had been silent."""
    asked = last.beat.groups_age_seconds
    beat = structs.replace(last.beat, age_seconds=age, groups_age_seconds=None if asked is None else asked + age)
    return RankState("running", state.step, last.phase, last.in_flight, beat=beat)
