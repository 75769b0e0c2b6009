"""The problems of a tuner table: messages that fall to one channel by accident, and rows that mean something else than
they say. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.nccl.tuner.plugin import Message, choose, possible_cells, turning_sizes
from laggard.nccl.tuner.table import (
    ALGORITHMS,
    ANY,
    COLLECTIVES,
    MAX_BYTES,
    MAX_LINE_CHARACTERS,
    PROTOCOLS,
    TunerLine,
    TunerRow,
    rows_of,
)

_FIELDS: Final = range(8, 11)
_NUMBERS: Final = ("min_bytes", "max_bytes", "channels", "nNodes", "nRanks", "numPipeOps", "regBuff")
_HEADER: Final = "collective_type"
_MAX_PROBLEMS: Final = 100
MAX_ROWS: Final = 2000
"""The most rows that are searched for messages without a row. More would take long; the plugin's own would too."""


class LineProblem(NamedTuple):
    line: int
    text: str


class OneChannel(NamedTuple):
    """Sizes of a collective that run on one channel, though no row asks for it."""

    collective: str
    nodes: int
    ranks: int
    min_bytes: int
    max_bytes: int
    line: int | None
    """The row whose channels are -1; None: no row matches."""


def find_line_problems(lines: Sequence[TunerLine]) -> tuple[LineProblem, ...]:
    """Returns what is wrong with single lines, in their order."""
    found = [problem for line in lines for problem in _problems(line)]
    return tuple(sorted((*found, *_shadowed(rows_of(lines[:MAX_ROWS])))))[:_MAX_PROBLEMS]


def find_one_channel(lines: Sequence[TunerLine]) -> tuple[OneChannel, ...]:
    """Returns the ranges that run on one channel, for each collective and each communicator that rows name, and for one
    that none names: a job has others than the one that was tuned."""
    rows = rows_of(lines[:MAX_ROWS])
    if not rows:
        return ()
    named = sorted({(row.nodes, row.ranks) for row in rows if ANY not in (row.nodes, row.ranks) and row.nodes > 0})
    found: list[OneChannel] = []
    for nodes, ranks in [*named[:8], _unnamed(named)]:
        for collective in COLLECTIVES:
            found += _ranges(rows, collective, nodes, ranks)
    return tuple(found)[:_MAX_PROBLEMS]


def _unnamed(named: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Returns a communicator of its own size: one node of eight GPUs, or the next that no row names."""
    ranks = 8
    while (1, ranks) in named:
        ranks += 1
    return 1, ranks


def _ranges(rows: Sequence[TunerRow], collective: str, nodes: int, ranks: int) -> Iterator[OneChannel]:
    offered = possible_cells(collective, nodes, ranks)
    sizes = [*turning_sizes(rows, collective, MAX_BYTES), MAX_BYTES + 1]
    start: int | None = None
    line: int | None = None
    for size, following in zip(sizes, sizes[1:], strict=False):
        choice = choose(rows, Message(collective, size, nodes, ranks), offered)
        own = choice.row.line if choice.row else None
        if start is not None and (not choice.one_channel_by_accident or own != line):
            yield OneChannel(collective, nodes, ranks, start, size - 1, line)
            start = None
        if choice.one_channel_by_accident and start is None:
            start, line = size, own
        if following > MAX_BYTES and start is not None:
            yield OneChannel(collective, nodes, ranks, start, MAX_BYTES, line)


def _problems(line: TunerLine) -> Iterator[LineProblem]:
    fields = line.fields
    if fields[0].lower() == _HEADER:
        return  # a row for communicators of 0 nodes: harmless
    if line.text.lstrip(" \t").startswith("#"):
        yield LineProblem(line.number, "a remark must begin at the start of the line")
        return
    if len(fields) not in _FIELDS:
        yield LineProblem(line.number, f"{len(fields)} fields in place of 8 to 10: the plugin drops or cuts the line")
        return
    if len(line.text) > MAX_LINE_CHARACTERS:
        yield LineProblem(
            line.number, f"longer than {MAX_LINE_CHARACTERS} characters: the plugin in C reads it as two lines"
        )
    if not all(fields):
        yield LineProblem(line.number, "an empty field: the plugin in C leaves it out and shifts those that follow")
        return
    yield from _words(line)
    if line.row:
        yield from _row_problems(line.row)


def _words(line: TunerLine) -> Iterator[LineProblem]:
    fields = line.fields
    for place, known, otherwise in ((0, COLLECTIVES, "allreduce"), (3, ALGORITHMS, "ring"), (4, PROTOCOLS, "simple")):
        if fields[place] not in known:
            meant = f" (is {fields[place].lower()} meant?)" if fields[place].lower() in known else ""
            text = f"{fields[place][:40]!r} is no name of the plugin, which takes {otherwise}{meant}"
            yield LineProblem(line.number, text)
    for place, name in zip((1, 2, 5, 6, 7, 8, 9), _NUMBERS, strict=True):
        if place < len(fields) and not fields[place].lstrip("+-").isdecimal():
            yield LineProblem(line.number, f"{name} is {fields[place][:40]!r}: the plugin reads digits alone, no units")


def _row_problems(row: TunerRow) -> Iterator[LineProblem]:
    if row.min_bytes > row.max_bytes:
        yield LineProblem(row.line, f"no size is between {row.min_bytes} and {row.max_bytes}")
    if row.channels == ANY:
        yield LineProblem(row.line, "channels -1 leaves one channel: give a number, or 0 for NCCL's own")
    elif row.channels < ANY or row.channels > 64:
        yield LineProblem(row.line, f"{row.channels} channels: NCCL has 1 to 64")
    if (row.algorithm, row.protocol) not in possible_cells(row.collective, 1, 1):
        yield LineProblem(
            row.line, f"NCCL has no {row.algorithm} with {row.protocol} for {row.collective}: not applied"
        )
    elif row.algorithm == "pat" and ANY not in (row.nodes, row.ranks) and row.nodes != row.ranks:
        yield LineProblem(row.line, "NCCL has pat for one rank a node alone: not applied")


def _shadowed(rows: Sequence[TunerRow]) -> Iterator[LineProblem]:
    """Yields the rows that are never applied, because an earlier row takes all their messages. A row counts as taking
    messages only where NCCL is sure to offer its algorithm and protocol."""
    for place, row in enumerate(rows):
        for earlier in rows[:place]:
            sure = earlier.algorithm == "ring" and earlier.protocol != "ll128"
            if sure and _covers(earlier, row) and row.nodes != 0:
                yield LineProblem(row.line, f"never applied: line {earlier.line} takes all its messages")
                break


def _covers(earlier: TunerRow, row: TunerRow) -> bool:
    wide = zip(earlier[7:], row[7:], strict=True)
    return (
        earlier.collective == row.collective
        and earlier.min_bytes <= row.min_bytes
        and row.max_bytes <= earlier.max_bytes
        and all(first in (ANY, second) for first, second in wide)
    )
