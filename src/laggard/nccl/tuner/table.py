"""Tuner tables: the CSV files of NCCL's example tuner plugin, read as the plugin reads them. Pure, standard library
only.

The plugin was C up to NCCL 2.30 (plugins/tuner/example/plugin.c; ext-tuner/example before 2.29) and is C++ since
(plugin.cc). Both take unknown words for allreduce, ring and simple, without a message. They differ in lines with empty
fields, which C joins; with more than ten fields, of which C takes the first ten and C++ none; and with more than 255
characters, which C splits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
