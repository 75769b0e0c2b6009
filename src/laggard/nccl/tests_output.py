"""The output of nccl-tests (all_reduce_perf and the others) to values. Pure, standard library only.

A row is size, count, type, redop and root, then time, algbw, busbw and #wrong, out of place and in place; `N/A` is what
was not checked or not measured (src/util.cu of nccl-tests 2.19). `-I 1` adds four columns to each half. Old releases
print the largest error in place of #wrong, and no root; collectives that reduce nothing may have no redop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_HEADER: Final = re.compile(r"#\s+size\s+count\s+type\b")
_ROW: Final = re.compile(r"\s*(\d{1,18})\s+(\d{1,18})\s+([a-z][a-z0-9_]*)\s+(\S.*)")
_BOUNDS: Final = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_HALF: Final = 4  # time, algbw, busbw, #wrong
_MIN_WRONG_ERROR: Final = 1.0  # of old releases, whose column `error` is the largest deviation
_RANK: Final = re.compile(r"#\s+Rank\s+(\d{1,7})\s.*?\bon\s+(\S+)")
_OPERATION: Final = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_?scatter|broadcast|reduce|all_?to_?all|sendrecv)(_perf)?\b"
)
_LAUNCHER: Final = re.compile(r"^(?:\[\d+(?:,\d+)?\](?:<std\w+>)?:?\s*|\d+: )")
_MAX_ROWS: Final = 10_000


class TestRow(NamedTuple):
    """One size. Seconds and bytes per second are those of the faster half; `wrong` counts both, None: not checked."""

    size_bytes: int
    seconds: float
    busbw: float
    wrong: int | None


class TestsOutput(NamedTuple):
    operation: str
    """The operation as the tuner's table names it; empty: the output does not name it."""
    ranks: int
    """0: not known."""
    nodes: int
    rows: tuple[TestRow, ...]
    hosts: tuple[str, ...] = ()
    out_of_bounds: bool = False
    """True: the last lines say that values are wrong."""
    alone: int = 0
    """The number of processes each of which was the only rank of its own test; 0: the ranks were together."""


def is_tests_output(text: str) -> bool:
    return any(_HEADER.search(_LAUNCHER.sub("", line)) for line in text.splitlines()[:2000])


def parse_tests_output(text: str) -> TestsOutput:
    lines = [_LAUNCHER.sub("", line) for line in text.splitlines()]
    rows = [row for line in lines if (row := _row(line))][:_MAX_ROWS]
    named = [match for line in lines if (match := _RANK.match(line))]
    numbers = [match[1] for match in named]
    hosts = tuple(dict.fromkeys(match[2] for match in named))
    alone = len(numbers) if set(numbers) == {"0"} else 0
    failed = any(match[2] == "FAILED" for line in lines if (match := _BOUNDS.match(line)))
    return TestsOutput(_operation(lines), len(set(numbers)), len(hosts), tuple(rows), hosts, failed, alone)


def _operation(lines: Iterable[str]) -> str:
    for line in lines:
        if line.lstrip().startswith("#") and not _RANK.match(line) and (match := _OPERATION.search(line.lower())):
            return match[1].replace("_", "")
    return ""


def _row(line: str) -> TestRow | None:
    match = _ROW.fullmatch(line)
    if match is None:
        return None
    words = match[4].split()
    others = len(words) % (2 * _HALF)  # redop and root
    halves = words[others:]
    width = len(halves) // 2
    if width < _HALF or others > 2:
        return None
    found = [half for half in (_half(halves[:width]), _half(halves[width:])) if half]
    if not found:
        return None
    best = min(found, key=lambda half: half[0])
    checked = [half[2] for half in found if half[2] is not None]
    return TestRow(int(match[1]), best[0], best[1], sum(checked) if checked else None)


def _half(words: list[str]) -> tuple[float, float, int | None] | None:
    """Returns seconds, bytes per second and wrong elements: the first is microseconds, then come algbw, busbw,
    #wrong."""
    try:
        seconds, busbw = float(words[0]) * 1e-6, float(words[2]) * 1e9
        wrong = None if words[3] == "N/A" else _wrong(words[3])
    except ValueError:
        return None
    return (seconds, busbw, wrong) if seconds > 0 else None


def _wrong(word: str) -> int:
    """Returns the number of wrong elements; of old releases, which print the largest error as 4e+00, 1 where it is one
    that no rounding makes."""
    if "e" in word.lower():
        return int(float(word) >= _MIN_WRONG_ERROR)
    return int(float(word))
