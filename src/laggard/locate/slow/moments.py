"""Tells a slowdown that stays from a moment of other work on the machine. Pure.

A scrape, a probe or another process on a rank's core holds a rank up for a second or three, and a verdict is drawn
again and again: sooner or later it is drawn in such a moment. How long moments last depends on the machine, so that the
job's own steps tell: as long as a slowdown has lasted no longer than twice what the ranks have shown before, and got
over, it is one more of these.
"""

from __future__ import annotations

import numpy as np

from laggard.locate.job_timings import Floats
from laggard.locate.medians import last_axis_median

BRIEF_SECONDS = 1.0
"""The duration below which a slowdown is a moment. Our own choice: two ranks on two cores, beside other work that was
rare, were held up for 0.1 to 0.9 s."""
BRIEF_STEPS = 100
"""The number of steps from which on a slowdown is more than a moment, however short they are."""

LIVE_SECONDS = 5.0
"""The duration of a moment in a live job, on which a verdict is drawn each second: a rare moment comes in some hour.
Beside ten processes that came and went, two ranks on two cores were held up for up to 4 s at a time."""

LONG_SECONDS, LONG_STEPS = 30.0, 16
"""The duration from which on a slowdown is no moment, if it has so many steps, whatever was before: a fault may move
from machine to machine, as heat and other tenants do. What has held ranks up by itself lasted 4 s at most."""

MOMENT_LENGTH_RATIO = 2
"""The number of times an earlier moment's length that a slowdown must last."""

RANKS_PER_EXCEPTION = 16
"""The number of ranks of which one may have had such a moment: by chance, or as it is a culprit itself."""

MAX_COMPARED = 64


def is_brief(steps: int, seconds: float, live: bool) -> bool:
    """Whether a slowdown that has lasted so long may be a moment, whatever was before."""
    return seconds < LIVE_SECONDS if live else seconds < BRIEF_SECONDS and steps < BRIEF_STEPS


def is_long(steps: int, seconds: float) -> bool:
    """Whether a slowdown that has lasted so long is no moment, whatever was before."""
    return seconds >= LONG_SECONDS and steps >= LONG_STEPS


def outlasts_moments(excess: Floats, since: int, level: float) -> bool:
    """Whether no part of the window before step index `since` looks alike: no median above `level` over as many steps
    as there are from `since` on, divided by MOMENT_LENGTH_RATIO, in any of the series `excess` [S, N], or in few of
    many."""
    width = max(1, (len(excess) - since) // MOMENT_LENGTH_RATIO)
    count = since // width
    if not count:
        return True
    some = excess[since - count * width : since, :: max(1, excess.shape[1] // MAX_COMPARED)]
    earlier = np.moveaxis(some.reshape(count, width, -1), 1, 2)
    had = (last_axis_median(earlier) > level).any(axis=0)
    return bool(had.sum() <= some.shape[1] // RANKS_PER_EXCEPTION)
