"""Puts the records of a rank whose clock was set back in the order of its steps. Pure.

Durations on a rank's own clock stay right when it is set, but for one step; what overlaps earlier steps by its times
would be taken for a wait of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.recording.columns import Table


def in_order_of_steps(tables: Sequence[Table]) -> tuple[tuple[Table, ...], tuple[int, ...]]:
    """`tables`, each ordered by rank, and the ranks whose clock was set back between two steps: from there on their
    times are moved to where the step before ended."""
    suspects = sorted(set().union(*map(_set_back, tables)))
    moved = [rank for rank in suspects if _move(tables, rank)]
    return tuple(tables), tuple(moved)


def _set_back(table: Table) -> set[int]:
    """The ranks of which a record's step is later than the one before, and its time earlier than all of that step's
    before it."""
    rank, step, start = table["rank"], table["step"], table["start"]
    if not len(rank):
        return set()
    changes = np.flatnonzero((rank[1:] != rank[:-1]) | (step[1:] != step[:-1])) + 1
    first = np.concatenate(([0], changes))
    began = np.fmin.reduceat(start, first)
    back = (rank[first[1:]] == rank[first[:-1]]) & (step[first[1:]] > step[first[:-1]]) & (step[first[:-1]] >= 0)
    back &= began[1:] < began[:-1]
    return set(rank[first[1:][back]].tolist())


def _move(tables: Sequence[Table], rank: int) -> bool:
    """Moves the times of `rank` in place; whether any had to be."""
    rows = [np.flatnonzero((table["rank"] == rank) & (table["step"] >= 0)) for table in tables]
    step, start, end = (
        np.concatenate([table[name][own] for table, own in zip(tables, rows, strict=True)])
        for name in ("step", "start", "end")
    )
    numbers, place = np.unique(step, return_inverse=True)
    began, ended = np.full(len(numbers), np.nan), np.full(len(numbers), np.nan)
    np.fmin.at(began, place, start)
    np.fmax.at(ended, place, end)
    back = np.diff(began) < 0
    if not back.any():
        return False
    until = np.fmax(ended, began)[:-1]  # a step of which nothing ended
    shifts = np.concatenate(([0.0], np.cumsum(np.where(back, until - began[1:], 0.0))))
    for table, own in zip(tables, rows, strict=True):
        by = shifts[np.searchsorted(numbers, table["step"][own])]
        table["start"][own] += by
        table["end"][own] += by
    return True
