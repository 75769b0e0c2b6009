"""Tells a rank that has more to do from a machine that is slower. Pure.

- By the elements of the model's inputs: a rank whose model gets more of them than its peers' has more work, as far as
  they explain its time. Where the hooks do not see them, nothing tells.
- By the update: more tokens make a rank's passes longer, and a slower machine does, too. But the update of its
  parameters is as large as the others', whatever the tokens: who takes longer for that as well is slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES, SCRIPT_PHASES
from laggard.kit.words import ranks_text, times_text
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.medians import last_axis_median, median, median_over_steps
from laggard.locate.shares import ALIKE, FEW, MIN_COST, MOST
from laggard.locate.slow.ranks import Slow, is_waited_for, slow_ranks
from laggard.locate.slow.steps import PASSES, Steps
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

TIME_EXPONENT: Final = 1.5
"""The largest power of the work with which time grows: attention's with the square of a sequence's length, all else in
proportion. Our choice."""

UPDATE: Final = PHASES.index("optimizer")


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
    sides = compared.columns, compared.peers
    elements, usual = (_mean(steps.work[np.ix_(compared.steps, it)]) for it in sides)
    took, usually = (_seconds(steps, compared.steps, it, phases) for it in sides)
    has_more = elements > usual > 0 and usually > 0
    if not has_more or (elements / usual) ** TIME_EXPONENT < took / usually:
        return ()
    gets = f"its model gets {elements:,.0f} elements a step, its peers' {usual:,.0f}"
    return (f"{gets}: {times_text(elements / usual)} as many",)


def _mean(work: Floats) -> float:
    """The mean of what is known: a step whose record is lost has no less work. Zero where nothing is."""
    known = work[np.isfinite(work)]
    return float(known.mean()) if len(known) else 0.0


def _seconds(steps: Steps, rows: NDArray[np.int64], columns: NDArray[np.int64], phases: Sequence[int]) -> float:
    """What the median rank takes in the phases."""
    return sum(median(medians(steps.phases[:, :, phase], rows, columns)) for phase in phases)


def medians(values: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
    """[K]: the medians of `values` [S, R] over `columns` in each of `rows` [K]; nan without any."""
    return last_axis_median(values[np.ix_(rows, columns)])


def is_slower_at_update(steps: Steps, own: NDArray[Any], others: NDArray[Any], rows: slice = slice(None)) -> bool:
    """Whether the ranks `own` take longer than `others` for the update, whose work is the same; one below MIN_COST of
    the step tells nothing."""
    update = median_over_steps(steps.phases[rows, :, UPDATE])
    usual = median(update[others])
    return usual >= MIN_COST * median(steps.duration) and median(update[own]) > (1 + ALIKE) * usual


def slow_at_their_own_experts(timings: JobTimings, steps: Steps) -> tuple[Steps, list[Slow]]:
    """The ranks without peers that are slow in passes and update beside the others of their stage, and the steps in
    which these are compared; empty where the update tells nothing."""
    if timings.stages is None or not steps.phased:
        return steps, []
    _, number, size = np.unique(timings.stages, return_inverse=True, return_counts=True)
    judged = (steps.peers.sizes == 1) & (size[number] >= FEW)
    if not judged.any():
        return steps, []
    beside = steps.regrouped(number, timings.nodes)
    found = [each for each in slow_ranks(beside, timings.nodes).slow if judged[list(each.columns)].all()]
    found = [each for each in found if _is_slower(beside, each) and is_waited_for(beside, each, found)]
    return (beside, found) if found else (steps, [])


def _is_slower(steps: Steps, each: Slow) -> bool:
    own = np.isin(np.arange(len(steps.peers.number)), each.columns)
    others = ~own & np.isin(steps.peers.number, steps.peers.number[list(each.columns)])
    rows = slice(each.since, each.until)
    passes = median_over_steps(steps.phases[rows][:, :, PASSES].sum(axis=2))
    return median(passes[own]) > (1 + ALIKE) * median(passes[others]) and is_slower_at_update(steps, own, others, rows)


def uneven_work_note(culprit: Culprit, excused: bool) -> Note | None:
    """The note that alone tells of uneven work: of what scripts leave to one rank, and of what comes by turns. None:
    it is a culprit, as one whose place says so, does not excuse it, and costs a quarter of the time."""
    cost, by_place = culprit.recoverable_ratio or 0.0, culprit.phase in (None, "between_steps")
    is_left_to_it = culprit.phase in SCRIPT_PHASES or by_place and (excused or cost < 1 - MOST)
    if culprit.kind != "uneven_work" or culprit.persistence == "persistent" and not is_left_to_it:
        return None
    what = (culprit.phase or "in no phase that is known").replace("_", " ")
    share = f"{cost:.0%} of the step time".replace("%", " %")
    text = f"{ranks_text(culprit.ranks)}: more to do than the others, {what}; they wait for it, {share}: "
    text += culprit.evidence[0] + ("" if excused or not by_place else ": its script's choice, or its machine is slow")
    kind = "place_or_machine" if by_place and not excused else "uneven_work" if culprit.phase else "rank_zero"
    return Note(kind, text, ranks=culprit.ranks[:MAX_NAMED_RANKS])
