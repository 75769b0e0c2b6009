"""The liveness of a rank: whether its process is alive, how long it has been silent, and what its readings still prove.
Pure."""

from __future__ import annotations

from laggard.locate.job_timings import RankState

SILENT_BEATS = 3.0
"""The number of missed beats, and a second more, after which a rank counts as silent: its process runs, but none of its
threads does. Our own choice."""
HUNG_STOPPED_SECONDS = 2.0
"""The time for which a rank must have been stopped to be called hung even where no other is known to wait for it. A
debugger that takes a stack stops a process for less."""


def is_alive(state: RankState) -> bool:
    return state.state == "running"


def has_left(state: RankState) -> bool:
    """Whether the rank's process ended with status 0, and it is known how far it had come."""
    return state.state == "finished" and state.end is not None and state.beat is not None


def is_silent(state: RankState) -> bool:
    return state.beat is not None and silent_seconds(state) > SILENT_BEATS * state.beat.interval_seconds + 1.0


def stopped_for_long(state: RankState) -> bool:
    return state.stopped and silent_seconds(state) > HUNG_STOPPED_SECONDS


def was_read_since(state: RankState, age_seconds: float, begin_seconds: float) -> bool:
    """Whether a reading of the rank, `age_seconds` old when its agent was asked, is newer than a wait that began
    `begin_seconds` ago. Where it is not, the rank may have come since; not so where none of its threads runs."""
    return state.stopped or is_silent(state) or age_seconds + state.asked_seconds_ago <= begin_seconds


def silent_seconds(state: RankState) -> float:
    """Seconds since the rank's last sign of life; 0.0 where it never gave one."""
    return state.beat.age_seconds if state.beat else 0.0
