"""The ranks of a large job that are looked at closely, since they stand out at three moments, and some others. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.collector.prometheus.counters import Counters, Mask, intervals
from laggard.kit.words import listed, ranks_text
from laggard.locate.shares import MIN_COST
from laggard.model import MAX_NAMED_RANKS, Note

MAX_UNSCREENED_RANKS = 2048
"""The most ranks of a job that is looked at closely as a whole."""

MAX_CANDIDATES = 1024
PEER_RANKS = 512

MIN_EXCESS_RATIO = MIN_COST
"""The share of the step by which a rank has to exceed the median in half of the time to be looked at: all that are slow
enough to be accused do."""


def screened(counters: Counters) -> list[int]:
    """The numbers of the ranks to be looked at closely."""
    if len(counters.ranks) <= MAX_UNSCREENED_RANKS:
        return [int(rank) for rank in counters.ranks]
    found = intervals(counters)
    busy = found.work + found.input
    known = np.isfinite(busy).any(axis=1)
    if not known.any():
        return [int(rank) for rank in counters.ranks[:: max(1, len(counters.ranks) // PEER_RANKS)]]
    excess = (busy[known] - np.nanmedian(busy[known], axis=1, keepdims=True)) / found.step[known, None]
    score = np.where(np.isfinite(excess), excess, -np.inf).max(axis=0)
    best = np.argsort(-score)[:MAX_CANDIDATES]
    candidates = best[score[best] > MIN_EXCESS_RATIO]
    spread = np.arange(0, len(counters.ranks), max(1, len(counters.ranks) // PEER_RANKS))
    chosen = np.unique(np.concatenate((candidates, _mates(counters, candidates), spread)))
    return [int(rank) for rank in counters.ranks[chosen]]


def _mates(counters: Counters, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The columns of all ranks on the candidates' machines; at most MAX_CANDIDATES, those of the worst first."""
    order: dict[str, int] = {}
    for column in candidates.tolist():
        if (machine := counters.machines[column]) is not None:
            order.setdefault(machine, len(order))
    mates = [(order[machine], column) for column, machine in enumerate(counters.machines) if machine in order]
    return np.array([column for _, column in sorted(mates)[:MAX_CANDIDATES]], np.int64)


def silent_note(numbers: NDArray[np.int64], nodes: Sequence[str | None], absent: Mask) -> Note:
    places = sorted({nodes[int(column)] or "an unknown machine" for column in np.flatnonzero(absent)})
    ranks = tuple(int(number) for number in numbers[:MAX_NAMED_RANKS])
    where = listed(places, 4)
    text = f"{ranks_text(int(number) for number in numbers)} on {where} no longer scraped, or later: not judged"
    return Note("silent_ranks", text, ranks)
