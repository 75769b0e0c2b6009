"""What is kept of an answer: a location or a report without its prose, as one comparable row."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from laggard.model import Culprit, Location, Report, Verdict

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
    """The answer on a recording, with its culprits and the kinds of its notes; or on a machine, with `findings` (code,
    severity, device) and the probes that said `unknown`. All in an order of their own. `error`: the type of the
    exception that came instead."""

    verdict: str = ""
    culprits: tuple[Named, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[tuple[str, str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    error: str = ""


def row_of(location: Location) -> Row:
    culprits = sorted(map(_named, location.culprits), key=lambda it: (it.kind, it.ranks, it.nodes, it.phase or ""))
    notes = sorted({note.kind for note in location.notes})
    return Row(location.verdict.value, tuple(culprits), tuple(notes))


def row_of_report(report: Report) -> Row:
    findings = sorted((each.code, each.severity.value, each.device) for each in report.findings)
    unknown = sorted(each.name for each in report.probes if each.verdict is Verdict.UNKNOWN)
    return Row(report.verdict.value, findings=tuple(findings), unknown=tuple(unknown))


def _named(culprit: Culprit) -> Named:
    cost = culprit.recoverable_ratio
    nodes = tuple(sorted(culprit.machines))
    return Named(culprit.kind, ranges(culprit.ranks), nodes, culprit.phase, None if cost is None else round(cost, 3))


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


def _without_costs(row: Row) -> Row:
    return replace(row, culprits=tuple(replace(each, cost=None) for each in row.culprits))


def _same_cost(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= COST_TOLERANCE


def text(row: Row) -> str:
    """A row for people, on one line."""
    return "; ".join(_parts(row))


def _parts(row: Row) -> Iterator[str]:
    yield row.error or row.verdict
    for each in row.culprits:
        cost = "" if each.cost is None else f"costs {each.cost:.1%}"
        nodes = f"on {' '.join(each.nodes)}" if each.nodes else ""
        yield " ".join(filter(None, (each.kind, each.ranks, nodes, each.phase and f"in {each.phase}", cost)))
    yield from (" ".join(each) for each in row.findings)
    for name, words in (("notes", row.notes), ("unknown", row.unknown)):
        if words:
            yield f"{name}: {' '.join(words)}"
