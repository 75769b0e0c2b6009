"""Finds slow ranks whose work nobody else does, as that of experts, beside the others of their stage. Pure.

An expert to which more tokens are sent makes a rank's passes longer, and a slower machine does, too. But the update of
its parameters is as large as the others', whatever the tokens: who takes longer for that as well is slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.locate.job_timings import Floats
from laggard.locate.medians import median, median_over_steps
from laggard.locate.slow.ranks import Slow, is_waited_for, slow_ranks
from laggard.locate.slow.steps import Steps
from laggard.locate.slow.uneven_work import MIN_UPDATE_SHARE

MIN_RANKS: Final = 4
"""The fewest ranks of a stage that tell what is usual there."""

UPDATE_PART: Final = 0.5
"""The least part that the excess of the one has of the excess of the other: a slower machine slows both alike."""

_PASSES: Final = [PHASES.index("forward"), PHASES.index("backward")]
_UPDATE: Final = PHASES.index("optimizer")


def slow_at_their_own_experts(
    steps: Steps, nodes: Sequence[str | None], stages: NDArray[np.int32]
) -> tuple[Steps, list[Slow]]:
    """The ranks without peers that are slow in passes and update beside the others of their stage [R], and the steps in
    which these are compared; empty where the update tells nothing."""
    alone = steps.peers.sizes == 1
    _, number, size = np.unique(stages, return_inverse=True, return_counts=True)
    judged = alone & (size[number] >= MIN_RANKS)
    if not steps.phased or not judged.any():
        return steps, []
    beside = steps.regrouped(number, nodes)
    found = [each for each in slow_ranks(beside, nodes) if judged[list(each.columns)].all()]
    return beside, [each for each in found if _is_slower(beside, each) and is_waited_for(beside, each)]


def _is_slower(steps: Steps, each: Slow) -> bool:
    own = np.isin(np.arange(len(steps.peers.number)), each.columns)
    others = ~own & np.isin(steps.peers.number, steps.peers.number[list(each.columns)])
    phases = steps.phases[each.since :]
    passes, update = _ratio(phases[:, :, _PASSES].sum(axis=2), own, others), _ratio(phases[:, :, _UPDATE], own, others)
    tells = median(median_over_steps(phases[:, others, _UPDATE])) >= MIN_UPDATE_SHARE * median(steps.duration)
    less, more = sorted((passes - 1, update - 1))
    return tells and less > 0 and less >= UPDATE_PART * more


def _ratio(seconds: Floats, own: NDArray[np.bool_], others: NDArray[np.bool_]) -> float:
    """How many times as long as the `others` [R] the ranks `own` [R] take, by medians."""
    level = median_over_steps(seconds)
    usual = median(level[others])
    return median(level[own]) / usual if usual > 0 else 0.0
