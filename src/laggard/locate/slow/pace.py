"""The time that so much work takes, by the ranks that do alike: a rank takes longer by its machine alone. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from laggard.locate.job_timings import Floats
from laggard.locate.medians import MAD_TO_SIGMA

MIN_VARIATION: Final = 0.02
"""The least standard deviation of the peers' work, as a share of it, from which on it tells how long work takes."""

MIN_CORRELATION: Final = 0.7
"""The least correlation of work and time of the peers: below it something else makes their steps longer or shorter."""

MIN_SAMPLES: Final = 48
_MAX_PEERS: Final = 64
"""The most peers that are looked at: so many tell as well as all of thousands."""
_OUTLIER_SIGMAS: Final = 5.0
_OUTSIDE: Final = 1.02
"""The ratio to the peers' largest work up to which a line through theirs is prolonged."""


def explained_share(own: tuple[Floats, Floats], peers: tuple[Floats, Floats]) -> float | None:
    """The share of the time by which a rank takes longer than its peers that its work explains: 1, all of it; 0, none.

    `own` and `peers`: the work (elements) and the seconds of each step and rank, [K, R] each, nan where one is not
    known. None where the peers' work does not tell how long it takes: it is the same in all steps, or the rank has more
    than any of them."""
    work, seconds = (each[:, :_MAX_PEERS].ravel() for each in peers)
    seen = np.isfinite(work) & np.isfinite(seconds) & (work > 0)
    work, seconds = work[seen], seconds[seen]
    if len(work) < MIN_SAMPLES or np.std(work) < MIN_VARIATION * np.mean(work):
        return None
    line = _line(work, seconds)
    given, took = (each.ravel() for each in own)
    known = np.isfinite(given) & np.isfinite(took) & (given > 0)
    given, took = given[known], took[known]
    if line is None or not len(given) or np.median(given) > _OUTSIDE * work.max():
        return None
    usual, excess = float(np.median(seconds)), float(np.median(took)) - float(np.median(seconds))
    if excess <= 0:
        return None
    return (float(np.median(np.polyval(line, given))) - usual) / excess


def _line(work: Floats, seconds: Floats) -> Floats | None:
    """The slope and the value at 0 of the seconds by the work, without the steps that took far longer or shorter; None
    where the work does not tell the time."""
    line = np.polyfit(work, seconds, 1)
    left = seconds - np.polyval(line, work)
    least = _OUTLIER_SIGMAS * MAD_TO_SIGMA * float(np.median(np.abs(left - np.median(left))))
    kept = np.abs(left - np.median(left)) <= least
    work, seconds = work[kept], seconds[kept]
    if len(work) < MIN_SAMPLES or not np.std(work) > 0 or not np.std(seconds) > 0:
        return None
    if np.corrcoef(work, seconds)[0, 1] < MIN_CORRELATION:
        return None
    return np.asarray(np.polyfit(work, seconds, 1))
