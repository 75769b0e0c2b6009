"""Tells a rank that is slow now and then from one whose data take longer now and then. Pure.

Ranks of one replica work on the same sequences, stage after stage: where these take longer, all of them do, whatever
else they do. With their recordings lost, one that is left seems to be slow by itself among the other replicas' ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats
from laggard.locate.slow.peers import node_numbers
from laggard.locate.slow.ranks import Slow
from laggard.locate.slow.steps import Steps

ALIKE: Final = 0.9
"""The correlation from which on two ranks are slower than their peers in the same steps, by as much. Of ranks that wait
for a slow one nothing of it is in their own time."""

MIN_ALIKE: Final = 2
"""The number of such ranks, on other machines and of other stages."""


def without_shared_data(steps: Steps, nodes: Sequence[str | None], slow: Sequence[Slow]) -> list[Slow]:
    """`slow` without the ranks that are slow in the same steps as ranks elsewhere that do other work."""
    machine = node_numbers(nodes)
    return [each for each in slow if _alike(steps, machine, each.columns) < MIN_ALIKE]


def _alike(steps: Steps, machine: NDArray[np.int64], columns: Sequence[int]) -> int:
    work = steps.peers.number
    here, own = set(machine[list(columns)].tolist()), set(work[list(columns)].tolist())
    others = [
        column
        for column in range(steps.excess.shape[1])
        if int(machine[column]) not in here and int(work[column]) not in own
    ]
    if not others:
        return 0
    series = np.nan_to_num(steps.excess[:, list(columns)]).mean(axis=1)
    return int((_correlations(series, np.nan_to_num(steps.excess[:, others])) >= ALIKE).sum())


def _correlations(series: Floats, others: Floats) -> Floats:
    """[K]: the correlation (Pearson's) of a series [S] with each of the `others` [S, K]; 0 of one that is constant."""
    one, many = series - series.mean(), others - others.mean(axis=0)
    length = np.sqrt((one**2).sum() * (many**2).sum(axis=0))
    found: Floats = np.divide(one @ many, length, out=np.zeros(many.shape[1]), where=length > 0)
    return found
