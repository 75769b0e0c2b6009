"""The note on a job of one rank: where the time of its steps goes. Nothing tells whether that is slow. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from laggard.constants import PHASES
from laggard.locate.job_timings import WARM_UP_STEPS, JobTimings
from laggard.locate.medians import median
from laggard.model import Note
from laggard.text.words import seconds_text

MIN_SHARE: Final = 0.02
"""The share of the step below which phases are left out."""


def one_rank_note(timings: JobTimings) -> Note:
    """Says that a rank is slow compared with its peers only, and in what it spends a step."""
    text = "one rank seen, two are needed: a rank is slow compared with its peers"
    shares = _shares(timings)
    if shares:
        text = f"{text}; {shares}"
    return Note("too_few_ranks", text)


def _shares(timings: JobTimings) -> str:
    """`its step of 52 ms is 40 % input, 30 % forward`; empty where no step is known."""
    kept = (timings.steps >= WARM_UP_STEPS) & np.isfinite(timings.step_seconds[:, 0])
    if len(timings.ranks) != 1 or not kept.any():
        return ""
    step = median(timings.step_seconds[kept, 0])
    means = {
        name.replace("_", " "): float(timings.phase_seconds[kept, 0, place].mean()) for place, name in enumerate(PHASES)
    }
    means["waiting in collectives"] = float(timings.waited_seconds[kept, 0].mean())
    whole = sum(means.values())
    told = sorted(((spent / whole, name) for name, spent in means.items() if spent > MIN_SHARE * whole), reverse=True)
    return f"its step of {seconds_text(step)} is " + ", ".join(f"{share * 100:.0f} % {name}" for share, name in told)
