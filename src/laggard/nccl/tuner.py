"""NCCL's tuner tables: read, checked, made from measurements, and applied as the plugin does."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

COLLECTIVES: Final = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS: Final = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS: Final = ("ll", "ll128", "simple")
MAX_BYTES: Final = (1 << 64) - 1
"""The largest value of C's size_t."""
ANY: Final = -1
MAX_LINE_CHARACTERS: Final = 255
"""Characters that C's fgets takes at once."""
_REQUIRED: Final = 8
_MAX_FIELDS: Final = 10
_INT: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")


class TunerRow(NamedTuple):
    """One row as the plugin understands it. `channels`: ANY leaves the plugin's own default, one channel; 0 leaves
    NCCL's."""

    line: int
    """The line of the file, from 1."""
    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int = ANY
    ranks: int = ANY
    pipe_ops: int = ANY
    reg_buff: int = ANY


class TunerLine(NamedTuple):
    """One line of a file: its fields as they are written, and the row that the plugin makes of it."""

    number: int
    text: str
    fields: tuple[str, ...]
    row: TunerRow | None
    """None: the plugin drops the line without a message."""


def read_lines(text: str) -> tuple[TunerLine, ...]:
    """Returns the lines that are neither empty nor remarks: `#` is one at the very beginning of a line only."""
    numbered = enumerate(text.split("\n"), 1)
    return tuple(_read_line(number, line) for number, line in numbered if line and not line.startswith("#"))


def rows_of(lines: Sequence[TunerLine]) -> tuple[TunerRow, ...]:
    return tuple(line.row for line in lines if line.row is not None)


def _read_line(number: int, text: str) -> TunerLine:
    written = tuple(field.strip(" \t") for field in text.rstrip("\r").split(","))
    fields = tuple(field.strip(" \t") for field in text.split(",") if field)[:_MAX_FIELDS]  # strtok joins empty ones
    return TunerLine(number, text, written, _row(number, fields) if len(fields) >= _REQUIRED else None)


def _row(number: int, fields: Sequence[str]) -> TunerRow:
    return TunerRow(
        number,
        _word(fields[0], COLLECTIVES, "allreduce"),
        _size(fields[1]),
        _size(fields[2]),
        _word(fields[3], ALGORITHMS, "ring"),
        _word(fields[4], PROTOCOLS, "simple"),
        *(_int(field) for field in fields[5:]),
    )


def _word(text: str, known: Sequence[str], otherwise: str) -> str:
    return text if text in known else otherwise


def _size(text: str) -> int:
    """Returns what strtoull makes of a text: `1M` is 1, a negative number wraps, a larger one is the largest."""
    number = _number(text)
    return number % (1 << 64) if -MAX_BYTES <= number <= MAX_BYTES else MAX_BYTES


def _int(text: str) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, _number(text)))


def _number(text: str) -> int:
    match = _INT.match(text[:64])
    return int(match[1]) if match else 0


def render_row(row: TunerRow) -> str:
    """Returns the row as a line of a table, with all ten fields."""
    return ",".join(map(str, row[1:]))


# The choice of NCCL's example tuner plugin for a message: the first row that matches, and the number of channels that
# it leaves. Pure, standard library only.
#
# The plugin sets one channel before it looks for a row (plugin.c and plugin.cc, pluginGetCollInfo: `*nChannels = 1`),
# and NCCL takes any number but 0 for a choice (src/enqueue.cc: `nMaxChannels == 0 ? info->nMaxChannels :
# nMaxChannels`). So a message that no row matches, or a row whose channels are -1, runs on one channel; 0 keeps NCCL's
# own number.

Cell = tuple[str, str]
"""An algorithm and a protocol."""

NCCLS_OWN: Final = 0
"""The number of channels that leaves the choice to NCCL."""
_GATHERING: Final = ("allgather", "reducescatter")


class Choice(NamedTuple):
    """The outcome for a message. `row`: None where none applied; NCCL then chooses algorithm and protocol."""

    row: TunerRow | None
    channels: int

    @property
    def one_channel_by_accident(self) -> bool:
        return self.channels == 1 and (self.row is None or self.row.channels != 1)


class Message(NamedTuple):
    """One collective as the plugin sees it. `size_bytes` as nccl-tests counts: for allgather and reducescatter all
    ranks' together."""

    collective: str
    size_bytes: int
    nodes: int
    ranks: int
    pipe_ops: int = 1
    reg_buff: int = 0


def possible_cells(collective: str, nodes: int, ranks: int) -> frozenset[Cell]:
    """Returns the cells that NCCL may offer for a collective (src/graph/tuning.cc): the others are marked to be
    ignored. Which of them it does offer depends on the hardware: ring with ll and simple always."""
    cells = {("ring", protocol) for protocol in ("ll", "ll128", "simple")}
    if collective == "allreduce":
        cells |= {("tree", protocol) for protocol in ("ll", "ll128", "simple")}
        cells |= {(name, "simple") for name in ("collnet_direct", "collnet_chain", "nvls", "nvls_tree")}
    elif collective in _GATHERING:
        cells |= {("nvls", "simple"), ("collnet_direct", "simple")}
        if nodes == ranks:
            cells.add(("pat", "simple"))
    return frozenset(cells)


def choose(rows: Sequence[TunerRow], message: Message, offered: Collection[Cell]) -> Choice:
    """Returns what the plugin chooses: of the rows that match, the first whose cell NCCL offers."""
    for row in rows:
        if matches(row, message) and (row.algorithm, row.protocol) in offered:
            return Choice(row, 1 if row.channels == ANY else row.channels)
    return Choice(None, 1)


def matches(row: TunerRow, message: Message) -> bool:
    pairs = (
        (row.nodes, message.nodes),
        (row.ranks, message.ranks),
        (row.pipe_ops, message.pipe_ops),
        (row.reg_buff, message.reg_buff),
    )
    return (
        row.collective == message.collective
        and row.min_bytes <= message.size_bytes <= row.max_bytes
        and all(wanted in (ANY, actual) for wanted, actual in pairs)
    )


def turning_sizes(rows: Iterable[TunerRow], collective: str, most_bytes: int) -> list[int]:
    """Returns sizes of which one lies in each interval between the bounds of rows: what holds for them holds for
    all."""
    own = [row for row in rows if row.collective == collective]
    bounds = {bound for row in own for bound in (row.min_bytes - 1, row.min_bytes, row.max_bytes, row.max_bytes + 1)}
    return sorted({0, 1, most_bytes} | {bound for bound in bounds if 0 <= bound <= most_bytes})


# The problems of a tuner table: messages that fall to one channel by accident, and rows that mean something else than
# they say. Pure, standard library only.

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
    sizes = turning_sizes(rows, collective, MAX_BYTES)

    def by_accident(span: tuple[int, int]) -> tuple[bool, int | None]:
        choice = choose(rows, Message(collective, span[0], nodes, ranks), offered)
        return choice.one_channel_by_accident, choice.row.line if choice.row else None

    spans = zip(sizes, (*(size - 1 for size in sizes[1:]), MAX_BYTES), strict=True)
    for (accident, line), alike in groupby(spans, by_accident):
        starts, ends = zip(*alike, strict=True)
        if accident:
            yield OneChannel(collective, nodes, ranks, starts[0], ends[-1], line)


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


# A tuner table from measurements: for each size the fastest setting with right results, and a row for every other
# message, so that none falls to one channel by accident. Pure, standard library only.

TIE: Final = 0.02
"""The share within which nccl-tests' times repeat: a setting must win by more to be changed to."""
SMALL_BYTES: Final = 64 << 10
"""The message size up to which NCCL's own model prefers ll on nearly all machines; what was not measured follows it."""


class Measurement(NamedTuple):
    """One setting at one size. `size_bytes` as nccl-tests counts."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    seconds: float
    wrong: int = 0
    """Wrong elements: such a setting is never chosen, however fast."""


class Band(NamedTuple):
    """A setting, for all sizes up to `max_bytes`."""

    min_bytes: int
    max_bytes: int
    best: Measurement


def choose_bands(measurements: Iterable[Measurement], tie: float = TIE) -> dict[str, tuple[Band, ...]]:
    """Returns the bands of each collective that was measured. Bounds lie between sizes in the geometric middle; the
    first band begins at 0, and the last has no end. A setting is kept from one size to the next where it is as fast."""
    found: dict[str, tuple[Band, ...]] = {}
    right = [each for each in measurements if not each.wrong and each.seconds > 0]
    for collective in COLLECTIVES:
        sizes: dict[int, dict[tuple[str, str, int], Measurement]] = {}
        for each in right:
            if each.collective == collective:
                own = sizes.setdefault(each.size_bytes, {})
                setting = (each.algorithm, each.protocol, each.channels)
                if setting not in own or each.seconds < own[setting].seconds:
                    own[setting] = each
        if sizes:
            found[collective] = tuple(_bands(sizes, tie))
    return found


def _bands(sizes: dict[int, dict[tuple[str, str, int], Measurement]], tie: float) -> list[Band]:
    bands: list[Band] = []
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        end = math.isqrt(max(size, 1) * ordered[place + 1]) if place + 1 < len(ordered) else MAX_BYTES
        best = _best(sizes[size], bands[-1].best if bands else None, tie)
        if bands and _setting(bands[-1].best) == _setting(best):
            bands[-1] = bands[-1]._replace(max_bytes=end)
        else:
            bands.append(Band(bands[-1].max_bytes + 1 if bands else 0, end, best))
    return bands


def _best(own: dict[tuple[str, str, int], Measurement], before: Measurement | None, tie: float) -> Measurement:
    best = min(own.values(), key=lambda each: (each.seconds, each.channels))
    kept = own.get(_setting(before)) if before else None
    return kept if kept and kept.seconds <= best.seconds * (1 + tie) else best


def _setting(each: Measurement) -> tuple[str, str, int]:
    return each.algorithm, each.protocol, each.channels


def build_rows(bands: dict[str, Sequence[Band]], nodes: int, ranks: int) -> tuple[TunerRow, ...]:
    """Returns the rows of a table for communicators of so many nodes and ranks. Each band is followed by rows for
    NCCL's own number of channels, which apply where NCCL does not offer the band's algorithm or protocol, and to all
    other communicators and collectives."""
    rows = [
        TunerRow(0, collective, band.min_bytes, band.max_bytes, *_setting(band.best), nodes, ranks)
        for collective, own in bands.items()
        for band in own
    ]
    for collective in COLLECTIVES:
        rows.append(TunerRow(0, collective, 0, SMALL_BYTES, "ring", "ll", NCCLS_OWN))
        rows.append(TunerRow(0, collective, 0, MAX_BYTES, "ring", "simple", NCCLS_OWN))
        rows.append(TunerRow(0, collective, 0, MAX_BYTES, "ring", "ll", NCCLS_OWN))
    return tuple(row._replace(line=place) for place, row in enumerate(rows, 1))
