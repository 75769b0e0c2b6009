"""The rows of a text: lines and rows of tables with times or rates, each with who says it, and square tables of
numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from laggard.diagnose.job.lines import JobLine, LineParser
from laggard.diagnose.joined.clock import wall_time
from laggard.diagnose.numbers.quantities import Kind, Quantity, announced, kind_of_name, name_of, number_of, quantities
from laggard.diagnose.rules import patterns

_P: Final = patterns("quantities")

MAX_ROWS: Final = 20_000
"""The most rows of a text that are compared."""
_MAX_LINE: Final = 1000
_MAX_SIDE: Final = 256
STEP = re.compile(r"\b(?:global[ _]?)?(?:step|iter(?:ation)?|epoch|batch)\b\W{0,4}\d", re.IGNORECASE)
"""The words of a line that tells of a step."""


class Who(NamedTuple):
    """The one that a number is of. `kind`: rank, host or GPU; empty: the text does not say."""

    kind: str = ""
    name: str = ""

    def __str__(self) -> str:
        return self.name if self.kind == "host" else f"{self.kind} {self.name}"


NOBODY: Final = Who()


class Row(NamedTuple):
    """`seconds`: its clock; None: it tells none."""

    who: Who
    quantities: tuple[Quantity, ...]
    text: str
    number: int
    seconds: float | None = None
    host: str = ""


class Matrix(NamedTuple):
    """`cells`: the values, None where there is none, row by row. `title`: the last line
    above it that names a unit."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]


class Text(NamedTuple):
    rows: tuple[Row, ...]
    matrices: tuple[Matrix, ...]


@lru_cache(1)  # two formats ask for a text's rows, one after the other, and the first of them again to judge it
def read(text: str, host: str = "") -> Text:
    """`host`: the machine that the text is of, where it is known."""
    lines = text.splitlines()
    matrices = list(_matrices(lines))
    taken: set[int] = {place for first, last, _ in matrices for place in range(first, last)}
    rows: list[Row] = []
    for first, last, found in _tables(lines):
        if first not in taken:
            taken.update(range(first, last))
            rows += found
    rows += islice(_line_rows(lines, taken, host), MAX_ROWS)
    return Text(tuple(sorted(rows, key=lambda row: row.number)[:MAX_ROWS]), tuple(each for _, _, each in matrices))


def _line_rows(lines: Sequence[str], taken: set[int], host: str) -> Iterator[Row]:
    parser, unit, section = LineParser(), None, ""
    for place, line in enumerate(lines):
        section = _section(line) or section
        if place in taken or not (unit or _P["may_tell"].search(line[:_MAX_LINE])):
            continue
        line = line.rpartition("\r")[2]
        unit = unit if line[:1].isspace() else None
        head = parser.parse(line[:_MAX_LINE])
        found = quantities(head.text, unit)
        unit = announced(line) if line.rstrip().endswith(":") else unit
        seconds = wall_time(line) if head.seconds is None else head.seconds
        if not found and seconds is None:
            continue
        if len(found) == 1 and not found[0].name and found[0].kind is Kind.TIME and STEP.search(line[:_MAX_LINE]):
            found = (found[0]._replace(name="step"),)
        elif (line[:1].isspace() or head.text[:1].isspace()) and section:
            found = tuple(it if it.name and _P["rank"].sub("", it.name) else it._replace(name=section) for it in found)
        yield Row(_who(head, line), found, line.strip(), place, seconds, head.host or host)


def _section(line: str) -> str:
    """The words of a line that is a head over others: `optimizer:`."""
    found = _P["section"].fullmatch(line[:80])
    return name_of(found[1]) if found else ""


def _who(head: JobLine, line: str) -> Who:
    rank = head.rank if head.rank is not None else head.task
    if rank is not None:
        return Who("rank", str(rank))
    if named := _P["rank"].search(line[:_MAX_LINE]):
        return Who("rank", named[1])
    if head.host:
        return Who("host", head.host)
    if named := _P["host"].search(line[:_MAX_LINE]):
        return Who("host", named[1])
    if named := _P["gpu"].search(line[:_MAX_LINE]):
        return Who("GPU", named[1])
    named = _P["first_word"].match(line)
    return Who("host", named[1]) if named else NOBODY


_ENTITIES: Final = (
    ("rank", re.compile(r"(?:global[ _])?rank(?:[ _]?id)?s?", re.IGNORECASE)),
    ("host", re.compile(r"(?:node|host|worker|server)(?:[ _]?name)?s?", re.IGNORECASE)),
    ("GPU", re.compile(r"gpu(?:[ _]?(?:id|index|idx))?", re.IGNORECASE)),
)
_MIN_TABLE_ROWS: Final = 2


def _tables(lines: Sequence[str]) -> Iterator[tuple[int, int, list[Row]]]:
    """Yields the tables with a head: where each begins and ends, and its rows."""
    end = 0
    for place, line in enumerate(lines):
        if place < end or len(line) > _MAX_LINE or _P["has_number"].search(line) or not _P["header"].search(line):
            continue
        for split in _splits(line):
            columns = _columns(split(line))
            if columns and (rows := _table_rows(lines, place + 1, split, columns)):
                end = rows[-1].number + 1
                yield place, end, rows
                break


def _splits(line: str) -> Iterator[_Split]:
    for separator in (r"\|", r",", r"\t", r"\s{2,}", r"\s+"):
        if re.search(separator, line.strip()):
            yield _Split(separator)


class _Split:
    def __init__(self, separator: str) -> None:
        self._pattern = re.compile(separator)

    def __call__(self, line: str) -> list[str]:
        return [cell.strip() for cell in self._pattern.split(line.strip().strip("|").strip())]


class _Column(NamedTuple):
    """A column of a table: of names (`entity`), of a quantity, or of neither."""

    name: str
    entity: str = ""
    kind: tuple[Kind, float] | None = None
    unit: str = ""


def _columns(cells: Sequence[str]) -> list[_Column] | None:
    """None: it is no head of a table of times or rates by rank, host, GPU or step."""
    columns = [_column(cell) for cell in cells]
    numbers = sum(bool(_P["number_cell"].fullmatch(cell)) for cell in cells)
    return columns if len(cells) > 1 and not numbers and any(it.kind for it in columns) else None


def _column(cell: str) -> _Column:
    found = _P["cell"].fullmatch(cell)
    raw, unit = (found[1], found[2] or "") if found else (cell, "")
    entity = next((kind for kind, pattern in _ENTITIES if pattern.fullmatch(raw)), "")
    return _Column(name_of(raw), entity, None if entity else kind_of_name(raw, unit), unit)


def _table_rows(lines: Sequence[str], first: int, split: _Split, columns: Sequence[_Column]) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(lines[first:], first):
        cells = split(line) if len(line) <= _MAX_LINE else []
        if len(cells) == len(columns) and (row := _table_row(cells, columns, line, number)):
            rows.append(row)
        elif not _P["rule"].match(line) or len(rows) >= MAX_ROWS or (rows and not line.strip()):
            break
    return rows if len(rows) >= _MIN_TABLE_ROWS else []


def _table_row(cells: Sequence[str], columns: Sequence[_Column], line: str, number: int) -> Row | None:
    who, found = NOBODY, []
    for cell, column in zip(cells, columns, strict=True):
        if column.entity:
            named = _P["name_within"].fullmatch(cell) if column.entity != "host" else None
            who = Who(column.entity, named[1] if named else cell)
        elif column.kind and _P["number_cell"].fullmatch(cell):
            kind, factor = column.kind
            shown = f"{cell} {column.unit}".strip()
            found.append(Quantity(column.name, number_of(cell) * factor, kind, shown=shown))
    return Row(who, tuple(found), line.strip(), number) if found else None


def _matrices(lines: Sequence[str]) -> Iterator[tuple[int, int, Matrix]]:
    end, title = 0, ""
    for place, line in enumerate(lines):
        if place < end or len(line) > 8 * _MAX_LINE:
            continue
        words = line.split(maxsplit=_MAX_SIDE + 1)
        words = words if not words or _P["label"].fullmatch(words[0]) else words[1:]
        labels = [found[1] for word in words if (found := _P["label"].fullmatch(word))]
        if len(labels) < 3 or [int(it) for it in labels] != list(range(len(words))):
            title = line if _P["unit_within"].search(line) else title
            continue
        rows, cells = _matrix_rows(lines[place + 1 : place + 1 + _MAX_SIDE], len(labels))
        if rows:
            end = place + 1 + len(rows)
            yield place, end, Matrix(title.strip()[-200:], tuple(rows), tuple(labels), tuple(cells))


def _matrix_rows(lines: Sequence[str], width: int) -> tuple[list[str], list[tuple[float | None, ...]]]:
    rows: list[str] = []
    cells: list[tuple[float | None, ...]] = []
    for line in lines:
        words = line.split()
        label = _P["label"].fullmatch(words[0]) if words else None
        values = [number_of(word) if _P["number_cell"].fullmatch(word) else None for word in words[1:]]
        if label is None or len(values) != width or all(value is None for value in values):
            break
        rows.append(label[1])
        cells.append(tuple(values))
    return rows, cells
