"""Tables of measured runs, read from CSV files that people and spreadsheets write. What is wrong with one is told in
one line, with its row."""

from __future__ import annotations

import csv
import difflib
import os
import re
import stat
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

from laggard.errors import UsageError
from laggard.text.words import printable_line

MAX_BYTES: Final = 16 << 20
MAX_ROWS: Final = 20_000
MAX_COLUMNS: Final = 100
_DELIMITERS: Final = ",;\t"
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_OUT_OF_MEMORY: Final = re.compile(r"oom|out[\s_-]*of[\s_-]*memory", re.IGNORECASE)
_NOT_MEASURED: Final = ("", "-", "n/a", "na", "nan", "none", "null", "?")
_MIN_MAGNITUDE: Final = 1e-12
_MAX_MAGNITUDE: Final = 1e18
_CELL_CHARACTERS: Final = 60


class OutOfMemory:
    """The value of a cell that says so."""


OUT_OF_MEMORY: Final = OutOfMemory()


class Row(NamedTuple):
    path: str
    line: int
    """The line of the file on which it ends, from 1."""
    cells: dict[str, str]

    def fail(self, text: str) -> NoReturn:
        shown = printable_line(",".join(self.cells.values()), 100)
        raise UsageError(f"{self.path}: line {self.line} ({shown}): {text}")

    def text(self, column: str) -> str:
        return self.cells.get(column, "")

    def whole(self, column: str, least: int, most: int) -> int:
        """Returns a whole number. Raises UsageError for any other text."""
        value = self.number(column)
        if value is None or value != int(value) or not least <= value <= most:
            self.fail(f"{column} is {_shown(self.text(column))}: give a whole number from {least} to {most}")
        return int(value)

    def number(self, column: str) -> float | None:
        """Returns a number; None for a cell that says that nothing was measured. Raises UsageError for any other
        text."""
        text = self.text(column)
        if text.lower() in _NOT_MEASURED:
            return None
        if not _NUMBER.fullmatch(text) or float(text) in (float("inf"), float("-inf")):
            self.fail(f"{column} is {_shown(text)}: {_advice(text)}")
        value = float(text)
        if value and not _MIN_MAGNITUDE <= abs(value) <= _MAX_MAGNITUDE:
            self.fail(f"{column} is {_shown(text)}: nothing that is measured of a training is that far from 1")
        return value

    def positive(self, column: str) -> float | None:
        value = self.number(column)
        if value is not None and value <= 0:
            self.fail(f"{column} is {_shown(self.text(column))}: give a number above 0, or OOM where it did not fit")
        return value

    def speed(self, column: str) -> float | OutOfMemory | None:
        """Returns a positive number, OUT_OF_MEMORY, or None for what was not measured."""
        return OUT_OF_MEMORY if _OUT_OF_MEMORY.fullmatch(self.text(column)) else self.positive(column)

    def values(self) -> dict[str, Any]:
        """Returns the row as an object: numbers as numbers, other cells as they are."""
        return {name: cell_value(text) for name, text in self.cells.items()}


class Table(NamedTuple):
    path: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def require(self, *names: str) -> None:
        """Raises UsageError where a column is missing."""
        missing = [name for name in names if name not in self.columns]
        if missing:
            close = difflib.get_close_matches(missing[0], self.columns, n=1)
            hint = f"; is {_shown(close[0])} meant for {missing[0]}?" if close else ""
            has = printable_line(", ".join(self.columns), 200)
            raise UsageError(f"{self.path}: the first line lacks {', '.join(missing)}: it names {has}{hint}")


def cell_value(text: str) -> int | float | str:
    if not _NUMBER.fullmatch(text) or re.match(r"[+-]?0[0-9]", text):  # 007 is a name
        return text
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else float(text)


def read_table(path: str) -> Table:
    """Raises UsageError for what is no table: one line, with the place."""
    text = _text(path, _read(path))
    lines = text.splitlines()
    header = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    if not header:
        raise UsageError(f"{path} is empty: give a table with a first line that names its columns")
    delimiter = max(_DELIMITERS, key=header.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    found: list[Row] = []
    columns: tuple[str, ...] = ()
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if not columns:
                columns = _columns(path, cells)
                continue
            found.append(_row(path, reader.line_num, columns, cells))
            if len(found) > MAX_ROWS:
                raise UsageError(f"{path} has more than {MAX_ROWS} rows: split it")
    except csv.Error as error:
        raise UsageError(f"{path} is no CSV table: line {reader.line_num}: {error}") from None
    if not found:
        raise UsageError(f"{path} has no rows below its first line: add a line for each measured run")
    return Table(path, columns, tuple(found))


def _read(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise UsageError(f"{path} is no regular file: give a table as a file, or - for standard input")
                data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"no file {path}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB: give a table with a row for each run")
    return data


def _text(path: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}: line {line} is not UTF-8 text: save the table as CSV in UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{path}: line {line} holds binary data: save the table as CSV in UTF-8")
    return text


def _columns(path: str, cells: Sequence[str]) -> tuple[str, ...]:
    names = tuple(re.sub(r"[\s-]+", "_", cell.lower()) for cell in cells)
    names = tuple(name if name else f"column_{place}" for place, name in enumerate(names, 1))
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise UsageError(f"{path}: the first line names {_shown(repeated)} twice: give each column a name of its own")
    if len(names) > MAX_COLUMNS:
        raise UsageError(f"{path} has more than {MAX_COLUMNS} columns: leave out those that describe no run")
    return names


def _row(path: str, line: int, columns: Sequence[str], cells: Sequence[str]) -> Row:
    extra = len(cells) - len(columns)
    row = Row(path, line, dict(zip(columns, [*cells, *[""] * -extra], strict=False)))
    if extra > 0 and any(cells[len(columns) :]):
        row = Row(path, line, {str(place): cell for place, cell in enumerate(cells)})
        row.fail(f"{len(cells)} cells for {len(columns)} columns: is there a comma inside a number?")
    if extra < 0:
        row.fail(f"{len(cells)} cells for {len(columns)} columns: fill what was not measured with -")
    return row


def _shown(text: str) -> str:
    return repr(printable_line(text, _CELL_CHARACTERS))


def _advice(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+,[0-9]+", text):
        return "write the number with a point and without separators of thousands"
    unit = re.fullmatch(r"([0-9.]+)\s*([A-Za-z/%µ].*)", text)
    if unit and _NUMBER.fullmatch(unit[1]):
        return f"leave out {_shown(unit[2])}, and give all rows in the unit that the column names"
    return "give a number"
