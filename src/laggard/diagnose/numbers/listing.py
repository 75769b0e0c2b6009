"""Files of ranks by when they were written, as `ls -l` lists them: one that is long after the others shows whose rank
came late."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from laggard.diagnose.numbers.parts import LONG_SECONDS
from laggard.diagnose.rules import table
from laggard.kit.words import seconds_text
from laggard.model import Finding

_FILE = re.compile(
    r"^[-l][rwxsStT-]{9}[.+@]?\s+\d+\s+\S+\s+\S+\s+[\d.,]+[KMGTP]?i?B?\s+"
    r"(?:(?P<day>\d{4}-\d\d-\d\d) (?P<clock>\d\d:\d\d(?::\d\d)?)\S*(?: [+-]\d{4})?"
    r"|(?P<month>[A-Z][a-z]{2}) +(?P<date>\d{1,2}) +(?P<time>\d\d:\d\d))\s+(?P<name>\S.*)$"
)
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"
_DIGITS = re.compile(r"\d+")
_MIN_FILES: Final = 4
_TIMES_SPREAD: Final = 4
"""How many times as late as the others lie apart a file has to be."""


class _File(NamedTuple):
    numbers: tuple[int, ...]
    seconds: float
    line: str


def late_files(lines: Sequence[str]) -> list[Finding]:
    groups: dict[str, list[_File]] = {}
    for line in lines:
        if (found := _FILE.match(line.strip()[:400])) and (seconds := _seconds(found)) is not None:
            numbers = tuple(int(it[-9:]) for it in _DIGITS.findall(found["name"]))
            groups.setdefault(_DIGITS.sub("0", found["name"]), []).append(_File(numbers, seconds, line.strip()))
    return [late for shape, files in groups.items() if len(files) >= _MIN_FILES for late in _late(shape, files)]


def _late(shape: str, files: Sequence[_File]) -> list[Finding]:
    """The one file that is late by much more than the others lie apart."""
    *others, last = sorted(files, key=lambda it: it.seconds)
    apart, late = others[-1].seconds - others[0].seconds, last.seconds - others[-1].seconds
    if late < LONG_SECONDS or late < _TIMES_SPREAD * apart:
        return []
    told = [place for place in range(len(last.numbers)) if len({it.numbers[place] for it in files}) == len(files)]
    who = f"rank {last.numbers[told[0]]}" if told else shape
    found = (
        table("numbers")
        .sections["late_file"]
        .found(
            {"line": last.line[:300], "late_seconds": late},
            who=who,
            late=_span(late),
            count=len(others),
            apart=_span(apart),
        )
    )
    return [found]


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else seconds_text(seconds) if seconds else "the same minute"


def _seconds(found: re.Match[str]) -> float | None:
    try:
        if found["day"]:
            return datetime.fromisoformat(f"{found['day']} {found['clock']}").timestamp()
        at = _MONTHS.find(found["month"])
        hour, minute = map(int, found["time"].split(":"))
        return datetime(2000, at // 3 + 1, int(found["date"]), hour, minute).timestamp() if at >= 0 else None
    except ValueError:
        return None
