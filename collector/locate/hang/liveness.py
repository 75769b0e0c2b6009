"""Whether a rank's process lives, and gives signs of it. Pure."""

from __future__ import annotations

from laggard.collector.locate.job_timings import RankState

SILENT_BEATS = 3.0
"""So many beats missed and a second: the process runs, but none of its threads gets to do anything. Our own choice."""


def lives(state: RankState) -> bool:
    return state.state == "running"


def is_silent(state: RankState) -> bool:
    return state.beat is not None and silence(state) > SILENT_BEATS * state.beat.interval_seconds + 1.0


def silence(state: RankState) -> float:
    """Seconds since its last sign of life."""
    return state.beat.age_seconds if state.beat else 0.0
