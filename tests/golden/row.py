"""What is kept of an answer: a location without its prose, as one comparable row."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from laggard.model import Culprit, Location

COST_TOLERANCE = 0.0015
"""The difference of two costs that are the same. Documents have them in units of 0.001, so that one that is computed in
another order may differ by a unit; the microseconds of recordings are less, 0.0001 of a step of ten milliseconds."""


class Named(msgspec.Struct, frozen=True, omit_defaults=True):
    """A culprit. `ranks` as ranges, `0-7 12`; `cost`: recoverable_ratio, the share of the step time."""

    kind: str
    ranks: str
    nodes: tuple[str, ...] = ()
    phase: str | None = None
    cost: float | None = None


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer; culprits and the kinds of notes in an order of their own. `refused`: no recording could be read."""

    verdict: str = ""
    culprits: tuple[Named, ...] = ()
    notes: tuple[str, ...] = ()
    refused: bool = False


REFUSED = Row(refused=True)


def row_of(location: Location) -> Row:
    culprits = sorted(map(_named, location.culprits), key=lambda it: (it.kind, it.ranks, it.nodes, it.phase or ""))
    notes = sorted({note.kind for note in location.notes})
    return Row(location.verdict.value, tuple(culprits), tuple(notes))


def _named(culprit: Culprit) -> Named:
    cost = culprit.recoverable_ratio
    return Named(
        culprit.kind,
        ranges(culprit.ranks),
        tuple(sorted(culprit.machines)),
        culprit.phase,
        None if cost is None else round(cost, 3),
    )


def ranges(ranks: Iterable[int]) -> str:
    """`0-7 12` for the ranks 0 to 7 and 12."""
    ordered = sorted(ranks)
    firsts = [rank for before, rank in pairwise([-2, *ordered]) if rank != before + 1]
    lasts = [rank for rank, after in pairwise([*ordered, -2]) if after != rank + 1]
    return " ".join(f"{a}-{b}" if a != b else str(a) for a, b in zip(firsts, lasts, strict=True))


def alike(one: Row, other: Row) -> bool:
    """Whether two answers are the same but for costs that differ by no more than COST_TOLERANCE."""
    costs = zip(one.culprits, other.culprits, strict=False)
    return _without_costs(one) == _without_costs(other) and all(_same_cost(a.cost, b.cost) for a, b in costs)


def _without_costs(row: Row) -> Any:
    return msgspec.structs.replace(
        row, culprits=tuple(msgspec.structs.replace(each, cost=None) for each in row.culprits)
    )


def _same_cost(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= COST_TOLERANCE
