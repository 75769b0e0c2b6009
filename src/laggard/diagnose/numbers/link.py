"""What a test reached beside the rate of the link that the same text shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.numbers.quantities import number_of
from laggard.diagnose.rules import table
from laggard.locate.shares import HALF, MOST
from laggard.model import Finding

_LINK = re.compile(
    r"^\s*Rate:\s{1,20}(?P<ib>\d{1,4})\s*$|\brate:\s{1,8}(?P<sys>\d{1,4}) Gb/sec|\bSpeed:\s(?P<mb>\d{3,7})Mb/s"
    r"|(?<![\d.])(?P<named>\d{2,4}) Gb/sec \(\d{1,2}X [A-Z]DR\d?\)"
)
_HEAD = re.compile(r"^\s*#bytes\s.*BW average\[(?P<unit>[GM])(?P<bit>[Bb])(?:it)?/s")
_ROW = re.compile(r"^\s*(?P<bytes>\d{1,12})\s+\d+\s+[\d.]+\s+(?P<average>[\d.]+)(?:\s|$)")
_SUM = re.compile(r"^\[(?:SUM|\s*\d+)\]\s+0\.0\d*-\s*\d{1,5}\.\d+\s+sec\s.*?(?P<rate>[\d.]+) (?P<unit>[GM])bits/sec")
_LARGE_BYTES: Final = 65536
"""The smallest message whose rate the link bounds, and not the time of each message."""
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
    found = (
        table("numbers")
        .sections["slow_for_its_link"]
        .found(
            {"line": best.line, "reached_gigabits": round(best.gigabits, 3), "link_gigabits": max(rates)},
            reached=f"{best.gigabits:.3g}",
            share=f"{100 * best.gigabits / max(rates):.0f}",
            rate=f"{max(rates):.0f}",
        )
    )
    return [found]


def _rates(line: str) -> Iterator[float]:
    for found in _LINK.finditer(line[:400]):
        yield float(found["mb"]) / 1e3 if found["mb"] else float(found["ib"] or found["sys"] or found["named"])


def _reached(lines: Sequence[str]) -> Iterator[_Reached]:
    factor = 0.0
    for line in lines:
        if head := _HEAD.match(line[:400]):
            factor = _GIGA[head["unit"]] * (8 if head["bit"] == "B" else 1)
        elif (row := _ROW.match(line[:400])) and factor:
            if int(row["bytes"]) >= _LARGE_BYTES:
                yield _Reached(number_of(row["average"]) * factor, HALF, line.strip())
        elif found := _SUM.match(line[:400]):
            yield _Reached(number_of(found["rate"]) * _GIGA[found["unit"]], 1 - MOST, line.strip())
