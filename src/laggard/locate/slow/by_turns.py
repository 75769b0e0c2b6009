"""Tells ranks that are slow by turns from one that is slow now and then. Pure.

Where each rank of those that do the same work is slow in some steps, nobody is left to compare it with: whatever runs
beside them on their machines holds up one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.slow.ranks import Slow
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import ranks_text

CLEAR_COST_RATIO: Final = 4.0
"""The ratio of a rank's cost to the next one's from which on it is a culprit all the same."""


def without_turns(steps: Steps, slow: Sequence[Slow]) -> list[Slow]:
    """`slow` without the ranks that are slow by turns."""
    number, kept = steps.peers.number, list(slow)
    for peers in {int(number[each.columns[0]]) for each in slow}:
        members = set(np.flatnonzero(number == peers).tolist())
        own = sorted((each for each in slow if members >= set(each.columns)), key=_cost, reverse=True)
        if len(own) < 2 or {column for each in own for column in each.columns} != members:
            continue
        first = own[:1] if _cost(own[0]) >= CLEAR_COST_RATIO * _cost(own[1]) else []
        kept = [each for each in kept if each not in own or each in first]
    return kept


def by_turns_notes(timings: JobTimings, found: Sequence[Slow], kept: Sequence[Slow]) -> tuple[Note, ...]:
    """A note on those of `found` that are not `kept`; empty where all are, or where one is kept beside them."""
    gone = [each for each in found if each not in kept]
    if not gone or kept:
        return ()
    ranks = sorted(int(timings.ranks[column]) for each in gone for column in each.columns)
    text = f"{ranks_text(ranks)} are slow by turns, in some steps each: other work on their machines holds them up"
    return (Note("by_turns", text, ranks=tuple(ranks[:MAX_NAMED_RANKS])),)


def _cost(each: Slow) -> float:
    """Seconds a step, over all steps."""
    share = 1.0 if each.hits is None else float(each.hits.mean())
    return share * each.excess
