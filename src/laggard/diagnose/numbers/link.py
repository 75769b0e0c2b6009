"""Two measurements of one thing in the same text: what a test reached beside the rate of its link, and what pairs reach
with a thing enabled beside the same without it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from laggard.diagnose.numbers.quantities import number_of
from laggard.diagnose.numbers.rows import Matrix
from laggard.diagnose.rules import patterns, table
from laggard.locate.shares import HALF, MOST
from laggard.model import Finding

_P: Final = patterns("quantities")

_LARGE_BYTES: Final = 65536
"""The smallest message whose rate the link bounds, and not the time of each message."""
_ENABLED = re.compile(r"\b(?:dis|en)abled\b", re.IGNORECASE)
_NOT_TITLE = re.compile(rf"{_ENABLED.pattern}|\([^()]{{0,40}}\)", re.IGNORECASE)
_SAYS: Final = table("numbers").sections
_GIGA: Final = {"G": 1.0, "M": 1e-3}


class _Reached(NamedTuple):
    gigabits: float
    least: float
    """The share of the link's rate below which it is too little: RDMA reaches nine tenths, TCP what its CPUs can."""
    line: str


def slow_for_its_link(lines: Sequence[str]) -> list[Finding]:
    rates = [rate for line in lines for rate in _rates(line)]
    best = max(_reached(lines), key=lambda it: it.gigabits / it.least, default=None)
    if not rates or best is None or best.gigabits >= best.least * max(rates):
        return []
    shown = {"line": best.line, "reached_gigabits": round(best.gigabits, 3), "link_gigabits": max(rates)}
    share = f"{100 * best.gigabits / max(rates):.0f}"
    reached, rate = f"{best.gigabits:.3g}", f"{max(rates):.0f}"
    return [_SAYS["slow_for_its_link"].found(shown, reached=reached, share=share, rate=rate)]


def tested_link(lines: Sequence[str]) -> dict[str, float | str]:
    """Returns the most that a test carried over one link, and its line; nothing: no test is there."""
    best = max(_reached(lines), key=lambda it: it.gigabits, default=None)
    return {} if best is None else {"link_gigabits": best.gigabits, "link_line": best.line}


def slower_when_enabled(matrices: Sequence[Matrix]) -> list[Finding]:
    """What all pairs reach with a thing enabled, where it is less than half of what they reach without it."""
    by_title: dict[str, dict[str, Matrix]] = {}
    for it in matrices:
        if (found := _ENABLED.search(it.title)) and _P["rate"].search(it.title):
            by_title.setdefault(" ".join(_NOT_TITLE.sub("", it.title).split()), {})[found[0].lower()] = it
    pairs = [(it["enabled"], it["disabled"]) for it in by_title.values() if len(it) == 2]
    row = _SAYS["slower_when_enabled"]
    return [
        row.found({"line": on.title, "without": off.title}, reached=f"{usual[0]:.3g}", without=f"{usual[1]:.3g}")
        for on, off in pairs
        if (usual := (_usual(on), _usual(off)))[0] < HALF * usual[1]
    ][:1]


def _usual(matrix: Matrix) -> float:
    """The median of all pairs."""
    cells = zip(matrix.rows, matrix.cells, strict=True)
    return median(
        value or 0.0
        for row, values in cells
        for column, value in zip(matrix.columns, values, strict=True)
        if row != column
    )


def _rates(line: str) -> Iterator[float]:
    for found in _P["link"].finditer(line[:400]):
        yield float(found["mb"]) / 1e3 if found["mb"] else float(found["ib"] or found["sys"] or found["named"])


def _reached(lines: Sequence[str]) -> Iterator[_Reached]:
    factor = 0.0
    for line in lines:
        if head := _P["head"].match(line[:400]):
            factor = _GIGA[head["unit"]] * (8 if head["bit"] == "B" else 1)
        elif (row := _P["row"].match(line[:400])) and factor:
            if int(row["bytes"]) >= _LARGE_BYTES:
                yield _Reached(number_of(row["average"]) * factor, HALF, line.strip())
        elif found := _P["sum"].match(line[:400]):
            yield _Reached(number_of(found["rate"]) * _GIGA[found["unit"]], 1 - MOST, line.strip())
