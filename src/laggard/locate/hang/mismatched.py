"""Finds collectives in which the ranks of a group called different operations, or with different sizes. Pure.

It takes records whose number counts all collectives of a group: there the nth call of one rank is the nth of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from laggard.constants import OPS
from laggard.locate.collectives import Collectives
from laggard.locate.hang.same_group import MISMATCH_TO_DO
from laggard.locate.job_timings import JobTimings
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import ranks_text

MAX_NOTES = 16

SAME_SIZE = frozenset(OPS.index(op) for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"))
"""Operations in which the larger of input and output has one size on all ranks. The root of a gather has more than the
others, and an all_to_all as much as each likes."""


class _Call(NamedTuple):
    """A call of a rank: the operation's place in OPS and its bytes, -1 where these need not be equal."""

    op: int
    size: int


def mismatched_collectives(timings: JobTimings) -> PartialVerdict:
    """A note about the first such collective of each group that somebody has not finished."""
    collectives = timings.collectives
    if collectives is None or not collectives.numbered_by_group:
        return NOTHING_FOUND
    notes = []
    for group, seq, calls in _first_mismatches(collectives):
        by_call: dict[_Call, list[int]] = {}
        for column, call in calls.items():
            by_call.setdefault(call, []).append(int(timings.ranks[column]))
        notes.append(_note(collectives.groups[group].name, seq, by_call))
    return PartialVerdict(notes=tuple(notes[:MAX_NOTES]))


def _first_mismatches(collectives: Collectives) -> Iterator[tuple[int, int, Mapping[int, _Call]]]:
    """The group, the number, and what each rank (column) called, of the first mismatch of each group."""
    usable = np.flatnonzero((collectives.peer < 0) & (collectives.op >= 0) & (collectives.seq >= 0))
    order = usable[np.lexsort((collectives.seq[usable], collectives.group[usable]))]
    group, seq = collectives.group[order], collectives.seq[order]
    bounds = np.flatnonzero((group[1:] != group[:-1]) | (seq[1:] != seq[:-1])) + 1
    told: set[int] = set()
    for rows in np.split(order, bounds):
        if len(rows) < 2 or int(collectives.group[rows[0]]) in told or np.isfinite(collectives.end[rows]).all():
            continue
        calls = _calls(collectives, rows.tolist())
        if _differ(list(calls.values())):
            told.add(int(collectives.group[rows[0]]))
            yield int(collectives.group[rows[0]]), int(collectives.seq[rows[0]]), calls


def _calls(collectives: Collectives, rows: Sequence[int]) -> dict[int, _Call]:
    calls = {}
    for row in rows:
        op = int(collectives.op[row])
        size = int(collectives.size[row]) if op in SAME_SIZE else -1
        calls[int(collectives.column[row])] = _Call(op, size)
    if len({call.op for call in calls.values()}) == 1:  # then the sizes are compared, as far as they are known
        calls = {column: call for column, call in calls.items() if call.size >= 0}
    return calls


def _differ(calls: Sequence[_Call]) -> bool:
    """Whether the operations differ or, as far as they are known, the sizes."""
    return len({call.op for call in calls}) > 1 or len({call.size for call in calls if call.size >= 0}) > 1


def _note(group: str, seq: int, by_call: Mapping[_Call, Sequence[int]]) -> Note:
    """The note on who called what; the smaller part comes first, as the one that is more likely wrong."""
    counts = Counter({call: len(ranks) for call, ranks in by_call.items()})
    *few, (most, _) = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    sizes_alone = len({call.op for call in by_call}) == 1
    called = [f"{ranks_text(by_call[call])} called {_text(call)}" for call, _ in few[:4]]
    ranks = sorted(rank for call, _ in few for rank in by_call[call])
    text = (
        f"{', '.join(called)} where {ranks_text(by_call[most])} called {_text(most)}, as collective number {seq} of "
        f"{group}: the {'sizes' if sizes_alone else 'operations'} do not match, and it cannot finish; what to do: "
        f"{MISMATCH_TO_DO}"
    )
    return Note("mismatch", text, ranks=tuple(ranks[:MAX_NAMED_RANKS]))


def _text(call: _Call) -> str:
    return OPS[call.op] + (f" of {call.size:,} bytes" if call.size >= 0 else "")
