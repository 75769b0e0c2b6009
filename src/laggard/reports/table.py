"""Tables of measured runs, read from CSV files that people and spreadsheets write. Notes say what to know before
believing one: doubled rows, units mixed, too few rows.

What is wrong with a table is told in one line, with its row.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from laggard.kit.errors import UsageError
from laggard.kit.majority import grouped
from laggard.kit.words import printable_line
from laggard.reports.documents import TableNote
from laggard.reports.outliers import Outlier
from laggard.reports.runs import Configuration, by_platform, speed

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


_UNITS: Final = {
    60.0: "samples a minute",
    3600.0: "samples an hour",
    1000.0: "samples a millisecond, or a separator of thousands",
    1024.0: "tokens a second of sequences of 1024",
    2048.0: "tokens a second of sequences of 2048",
    4096.0: "tokens a second of sequences of 4096",
}
_UNIT_TOLERANCE: Final = 0.3
_MAX_GROWTH_RATIO: Final = 1.05
"""The largest speed-up over the micro-batch's own growth. A larger micro-batch at no more accumulation cannot be faster
by more than its own growth, but for noise."""
_MAX_LINES: Final = 20


def campaign_notes(
    configurations: Sequence[Configuration],
    outliers: Sequence[Outlier],
    empty: Sequence[Row],
    within: float,
    fewest: int,
) -> tuple[TableNote, ...]:
    flagged = {outlier.run.line for outlier in outliers}
    return (
        *empty_notes(empty),
        *_too_few(configurations, fewest),
        *_nothing_ran(configurations),
        *repeat_notes(configurations, within),
        *_best_is_outlier(configurations, flagged),
        *_impossible(configurations, flagged),
        *_memory_contradictions(configurations),
        *_unit_notes(outliers),
    )


def empty_notes(rows: Sequence[Row]) -> Iterator[TableNote]:
    if rows:
        lines = tuple(row.line for row in rows)
        yield TableNote("not_measured", f"{_lines(lines)} without a measurement: left out", lines)


def repeat_notes(configurations: Sequence[Configuration], within: float) -> Iterator[TableNote]:
    """Yields a note for each configuration that has several rows."""
    for each in configurations:
        if len(each.runs) < 2:
            continue
        lines = tuple(run.line for run in each.runs)
        speeds = [run.samples_per_second for run in each.runs]
        known = [value for value in speeds if value is not None]
        if not known or len(set(speeds)) == 1:
            yield TableNote("doubled_row", f"{_lines(lines)} say the same of one configuration: it counts once", lines)
        elif len(known) < len(speeds):
            text = f"{_lines(lines)} contradict each other: one configuration ran, and ran out of memory"
            yield TableNote("contradiction", text, lines)
        else:
            apart = max(known) / min(known) - 1
            kind = "repeats" if apart <= within else "contradiction"
            text = (
                f"{_lines(lines)} measured one configuration, {apart:.1%} apart "
                f"({', '.join(f'{value:g}' for value in known[:6])}): the median counts, {speed(each):g}"
            )
            yield TableNote(kind, text, lines)


def _too_few(configurations: Sequence[Configuration], fewest: int) -> Iterator[TableNote]:
    running = sum(each.samples_per_second is not None for each in configurations)
    if running == 1:
        yield TableNote("too_few", "only one configuration ran: it is the best of itself, and nothing can check it")
    elif 0 < running < fewest:
        text = f"only {running} configurations ran: too few to find outliers"
        yield TableNote("too_few", text)


def _nothing_ran(configurations: Sequence[Configuration]) -> Iterator[TableNote]:
    for platform, own in by_platform(configurations).items():
        if not any(each.samples_per_second for each in own):
            lines = tuple(run.line for each in own for run in each.runs)
            yield TableNote("out_of_memory", f"nothing ran on {platform}: every row is out of memory", lines)


def _best_is_outlier(configurations: Sequence[Configuration], flagged: set[int]) -> Iterator[TableNote]:
    for platform, own in by_platform(configurations).items():
        lines = tuple(run.line for run in max(own, key=speed).runs if run.line in flagged)
        if lines:
            text = f"the best of {platform} ({_lines(lines)}) is an outlier: measure it again before you choose it"
            yield TableNote("best_is_outlier", text, lines)


def _impossible(configurations: Sequence[Configuration], flagged: set[int]) -> Iterator[TableNote]:
    """Yields pairs of rows of which one must be wrong: a step's time does not fall when its micro-batch grows."""
    sound = (
        each for each in configurations if each.samples_per_second and not any(run.line in flagged for run in each.runs)
    )
    for group in _of_one_stage(sound):
        ordered = sorted(group, key=lambda each: each.micro_batch)
        for small, large in itertools.pairwise(ordered):
            growth = large.micro_batch / small.micro_batch
            if large.grad_accum <= small.grad_accum and speed(large) > speed(small) * growth * _MAX_GROWTH_RATIO:
                lines = (small.runs[0].line, large.runs[0].line)
                text = (
                    f"{_lines(lines)} contradict each other: {growth:g} times the micro-batch cannot be "
                    f"{speed(large) / speed(small):.2f} times as fast"
                )
                yield TableNote("contradiction", text, lines)


def _memory_contradictions(configurations: Sequence[Configuration]) -> Iterator[TableNote]:
    """Yields pairs of rows of which a larger micro-batch fitted and a smaller one did not."""
    for group in _of_one_stage(configurations):
        failed = [each for each in group if each.samples_per_second is None]
        fitted = [each for each in group if each.samples_per_second is not None]
        if failed and fitted:
            small = min(failed, key=lambda each: each.micro_batch)
            large = max(fitted, key=lambda each: each.micro_batch)
            if small.micro_batch < large.micro_batch:
                lines = (small.runs[0].line, large.runs[0].line)
                text = (
                    f"{_lines(lines)} contradict each other: micro-batch {small.micro_batch} ran out of memory, and "
                    f"{large.micro_batch} did not"
                )
                yield TableNote("contradiction", text, lines)


def _of_one_stage(configurations: Iterable[Configuration]) -> Iterable[list[Configuration]]:
    """Those that differ in micro-batch and accumulation alone."""
    return grouped(configurations, lambda each: (each.platform, each.stage, each.others)).values()


def _unit_notes(outliers: Sequence[Outlier]) -> Iterator[TableNote]:
    for outlier in outliers:
        ratio = max(outlier.ratio, 1 / outlier.ratio)
        factor = min(_UNITS, key=lambda factor: abs(ratio / factor - 1))
        if abs(ratio / factor - 1) <= _UNIT_TOLERANCE:
            side = "above" if outlier.ratio > 1 else "below"
            text = f"line {outlier.run.line} is {ratio:.0f} times {side} what is expected: is it in {_UNITS[factor]}?"
            yield TableNote("unit", text, (outlier.run.line,))


def _lines(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:_MAX_LINES])) + (" ..." if len(lines) > _MAX_LINES else "")
    return f"line {shown}" if len(lines) == 1 else f"lines {shown}"
