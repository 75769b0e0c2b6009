"""The steps that an agent is asked for at first. Its rank files hold up to ten times as many as a collector keeps: to
read them all takes minutes where thousands of agents are asked anew, as after a restart. Pure."""

from __future__ import annotations

from typing import Final

from laggard.locate.job_timings import WINDOW_SECONDS, WINDOW_STEPS
from laggard.wire.ranks import RankRow, RanksDocument

SPARE: Final = 2.0
"""The time that is asked for, over that which steps of the usual length take: the last ones may be longer."""


def last_steps_since(document: RanksDocument) -> float:
    """The time, on the node's monotonic clock, from which on the last WINDOW_STEPS steps of all its ranks are told, and
    those of WINDOW_SECONDS; 0.0, for all, where that cannot be told. `document`: what the agent answered without
    steps."""
    if document.now is None or not document.ranks:
        return 0.0
    return max(0.0, document.next - max(_seconds_back(row, document.now) for row in document.ranks))


def _seconds_back(row: RankRow, now: float) -> float:
    """The seconds from now back to the first of the rank's last steps, and before: one that hangs made none of late."""
    if not row.steps:
        return SPARE * WINDOW_SECONDS
    quiet = max(0.0, now - row.last_progress_timestamp_seconds)
    return quiet + SPARE * max(WINDOW_SECONDS, WINDOW_STEPS * row.step_seconds / row.steps)
