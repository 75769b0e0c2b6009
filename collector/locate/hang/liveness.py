"""Whether a rank's process is alive, and for how long it has been silent. Pure."""

from __future__ import annotations

from laggard.collector.locate.job_timings import RankState

SILENT_BEATS = 3.0
"""So many beats missed, and a second more: the process runs, but none of its threads does. Our own choice."""


def is_alive(state: RankState) -> bool:
    return state.state == "running"


def is_silent(state: RankState) -> bool:
    return state.beat is not None and silent_seconds(state) > SILENT_BEATS * state.beat.interval_seconds + 1.0


def silent_seconds(state: RankState) -> float:
    """Seconds since the rank's last sign of life; 0.0 where it never gave one."""
    return state.beat.age_seconds if state.beat else 0.0
