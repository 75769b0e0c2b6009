"""Tells a rank that has more to do from a machine that is slower, by the elements of the model's inputs. Pure.

A rank whose model gets more of them than its peers' has more work, as far as they explain its time. Where the hooks do
not see them, nothing tells: a lower clock, too, makes both passes longer and not the update, which memory bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import SCRIPT_PHASES
from laggard.kit.words import ranks_text, times_text
from laggard.locate.job_timings import Floats
from laggard.locate.medians import last_axis_median, median
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

MIN_MORE_WORK: Final = 1.02
"""The ratio of the elements that a rank's model gets to those that its peers' get, from which on it has more to do."""

TIME_EXPONENT: Final = 1.5
"""The largest power of the work with which time grows: attention's with the square of a sequence's length, all else in
proportion. Our choice."""

MIN_EXPLAINED: Final = 0.5
"""The least share of the longer time that more work has to explain. Our choice: what else makes the rank slower is then
less than that."""


class Compared(NamedTuple):
    """The steps [K], in which a rank is compared, its columns, and its peers' columns."""

    steps: NDArray[np.int64]
    columns: NDArray[np.int64]
    peers: NDArray[np.int64]


def more_work(steps: Steps, compared: Compared, phases: Sequence[int]) -> tuple[str, ...]:
    """The evidence that the rank has more work, which explains how much longer it takes in `phases`; empty where
    nothing tells that."""
    if steps.work is None or not len(compared.peers):
        return ()
    elements, usual = (_mean(steps.work[np.ix_(compared.steps, it)]) for it in (compared.columns, compared.peers))
    took, usually = (_seconds(steps, compared.steps, it, phases) for it in (compared.columns, compared.peers))
    if not (elements > 0 and usual > 0 and took > usually > 0):
        return ()
    more, longer = elements / usual, took / usually
    if more < MIN_MORE_WORK or more**TIME_EXPONENT - 1 < MIN_EXPLAINED * (longer - 1):
        return ()
    return (f"its model gets {elements:,.0f} elements a step, its peers' {usual:,.0f}: {times_text(more)} as many",)


def _mean(work: Floats) -> float:
    """The mean of what is known: a step whose record is lost has no less work. Zero where nothing is."""
    known = work[np.isfinite(work)]
    return float(known.mean()) if len(known) else 0.0


def _seconds(steps: Steps, rows: NDArray[np.int64], columns: NDArray[np.int64], phases: Sequence[int]) -> float:
    """What the median rank takes in the phases."""
    some = np.ix_(rows, columns)
    return sum(median(last_axis_median(steps.phases[:, :, phase][some])) for phase in phases)


def is_by_design(culprit: Culprit) -> bool:
    """Whether uneven work is told of in a note alone: what scripts leave to one rank, and what comes by turns."""
    if culprit.kind != "uneven_work":
        return False
    return culprit.persistence != "persistent" or culprit.phase in ("between_steps", *SCRIPT_PHASES)


def uneven_work_note(culprit: Culprit) -> Note:
    """The note of a culprit that is_by_design(); where no phase tells what it does, it stands in a script's place."""
    ranks = ranks_text(culprit.ranks)
    what = (culprit.phase or "in no phase that is known").replace("_", " ")
    share = f"{culprit.recoverable_ratio or 0.0:.0%} of the step time".replace("%", " %")
    text = f"{ranks}: more to do than the others, {what}; they wait for it, {share}: {culprit.evidence[0]}"
    return Note("uneven_work" if culprit.phase else "rank_zero", text, ranks=culprit.ranks[:MAX_NAMED_RANKS])
