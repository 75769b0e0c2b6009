"""The steps of a run that stand for its speed: without the warm-up, whatever its length. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES, SCRIPT_PHASES
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings
from laggard.locate.medians import last_axis_median, median

WARM_UP_RATIO: Final = 1.25
"""The ratio to the run's median from which on a step at the beginning still belongs to the warm-up: compiling, filling
caches, tuning of kernels. Our own choice."""

MAX_WARM_UP_SHARE: Final = 0.25
"""The largest share of the steps that are left out at the beginning for that: a run that is slow for longer is so."""

RARE: Final = tuple(map(PHASES.index, SCRIPT_PHASES))
"""Phases that few steps have."""

RARE_SHARE: Final = 0.5
"""The share of the steps below which any phase counts as one that few have."""

FEW_STEPS_SHARE: Final = 0.1
"""The share of a usual step by which a phase has to be longer than usual for that to count as something that few steps
have."""

INPUT: Final = PHASES.index("input")


class SteadySteps(NamedTuple):
    """S steps over R ranks and P phases. Times in seconds, nan where a rank has no row. `duration` [S]: the ranks'
    median."""

    numbers: NDArray[np.int64]
    phases: Floats  # [S, R, P]
    waited: Floats  # [S, R]
    duration: Floats

    @property
    def drift(self) -> float:
        """The step in the middle of the last third over that of the first."""
        third = max(1, len(self.duration) // 3)
        first, last = median(self.duration[:third]), median(self.duration[-third:])
        return last / first if first > 0 else 1.0


def steady_steps(timings: JobTimings) -> SteadySteps | None:
    """The steps that at least half of the ranks have finished, after the warm-up; None where there are none."""
    finished = np.isfinite(timings.step_seconds).sum(axis=1)
    kept = (finished > 0) & (finished >= len(timings.ranks) / 2) & (timings.steps >= WARM_UP_STEPS)
    if not kept.any():
        return None
    duration = last_axis_median(timings.step_seconds[kept])
    first = _warm_up(duration)
    rows = np.flatnonzero(kept)[first:]
    whole = slice(int(rows[0]), int(rows[-1]) + 1)  # copies nothing, as of a job of many ranks it must not
    chosen = whole if whole.stop - whole.start == len(rows) else rows
    return SteadySteps(
        timings.steps[rows], timings.phase_seconds[chosen], timings.waited_seconds[chosen], duration[first:]
    )


def _warm_up(duration: Floats) -> int:
    """The number of the first steps that are far longer than the others, one after the other."""
    limit = WARM_UP_RATIO * median(duration)
    most = int(MAX_WARM_UP_SHARE * len(duration))
    short = np.flatnonzero(~(duration[:most] > limit))
    return int(short[0]) if len(short) else most
