"""Finds the ranks that stood still long before their processes were killed, and alone did not end by themselves. Pure.

Where a collective fails, as by its timeout, the processes that waited in it end. One that is stuck in the driver of a
GPU that has stopped does not: somebody kills it later, and its recording has no end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.locate.hang.death import Death
from laggard.locate.hang.hangs import HUNG_STEPS, MAY_TAKE_LONG
from laggard.locate.hang.liveness import SILENT_BEATS
from laggard.locate.job_timings import JobTimings, LastBeat
from laggard.locate.medians import middle


def stuck(timings: JobTimings, first: Sequence[Death], others: Sequence[Death]) -> list[Death]:
    """The `first` deaths with the places where they stood, if all of these ranks stood still for long, as they said
    last, and all `others` told that they ended since their collectives had failed: the job hung long before. Else
    none."""
    if not timings.last_beats or not others or not all(death.told for death in others):
        return []
    known = timings.step_seconds[np.isfinite(timings.step_seconds)]
    long = HUNG_STEPS * (middle(known) if len(known) else 0.0)
    stood = [death._replace(stood=timings.last_beats[death.column]) for death in first]
    ended = any(timings.states[death.column].end for death in first)
    return [] if ended or not all(each.stood and _is_long(each.stood, long) for each in stood) else stood


def _is_long(last: LastBeat, least: float) -> bool:
    """Whether a rank stood still for more than `least` seconds, where none works alone for as long."""
    seconds = last.in_flight.seconds if last.in_flight else last.quiet_seconds
    return seconds > max(least, silence(last)) and (last.in_flight is not None or last.phase not in MAY_TAKE_LONG)


def silence(last: LastBeat) -> float:
    """The seconds without a word after which the rank is silent."""
    return SILENT_BEATS * last.beat.interval_seconds + 1.0
