"""Listings without a drawn table: the rows of a query of nvidia-smi, or one line of each of many machines. Rows of one
form are put beside one another, each GPU of each machine by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from laggard.diagnose.numbers.quantities import name_of, number_of, quantities
from laggard.diagnose.numbers.rows import Row, Who
from laggard.diagnose.parts import headed, prompt_of
from laggard.diagnose.rules import patterns, table
from laggard.locate.shares import HALF, MOST
from laggard.model import Finding
from laggard.rings.judge import MIN_MEASURED, severity_of_ratio

_P: Final = patterns("quantities")
_MAX_LINES: Final = 20_000
_MAX_LINE: Final = 400
_MAX_CELLS: Final = 32
_MAX_INDEX: Final = 64


class Listed(NamedTuple):
    """One row. `host`, `gpu`: empty where the text does not say them. `names`: of the columns, empty where it does not.
    `form`: what rows that are compared have in common. It tells which columns are numbers, their units, and the power
    state: a GPU in another one is slower by design."""

    host: str
    gpu: str
    names: tuple[str, ...]
    cells: tuple[str, ...]
    line: str
    place: int
    form: tuple[str, ...]

    @property
    def row(self) -> Row:
        who = f"{self.gpu} on {self.host}" if self.host and self.gpu else self.gpu or self.host
        found = [
            it._replace(name=name or f"column {number}")
            for number, (name, cell) in enumerate(zip(self.names, self.cells, strict=True), 1)
            for it in quantities(f"{name}: {cell}" if name else cell)[:1]
        ]
        return Row(Who("GPU" if self.gpu else "host", who), tuple(found), self.line, self.place, host=self.host)


def listings(lines: Sequence[str], host: str = "") -> list[Listed]:
    """Returns the rows of the commonest form. `host`: the machine that the text is of, where it is known."""
    forms: dict[tuple[str, ...], list[Listed]] = {}
    for row in _with_gpus(list(_rows(lines, host))):
        if row.host or row.gpu:
            forms.setdefault(row.form, []).append(row)
    most = max(forms.values(), key=len, default=[])
    return list(_at_work(most)) if len(most) >= MIN_MEASURED else []


def _at_work(rows: Sequence[Listed]) -> Iterator[Listed]:
    """The rows without those that are idle: their utilisation, the first share, is less than half of the usual one."""
    place = next((place for place, form in enumerate(rows[0].form) if form == "# %"), None)
    shares = [number_of(row.cells[place].rstrip(" %")) if place is not None else 0.0 for row in rows]
    return (row for row, share in zip(rows, shares, strict=True) if share >= HALF * median(shares))


def _rows(lines: Sequence[str], host: str) -> Iterator[Listed]:
    names: tuple[str, ...] = ()
    for place, line in enumerate(lines[:_MAX_LINES]):
        if len(line) > _MAX_LINE or not line.strip():
            continue
        if prompt := prompt_of(line):
            asked = _P["asked"].search(prompt.command)
            names = tuple(map(_name, asked[1].split(","))) if asked else ()
            continue
        writer, text = headed(line) or (host, line)
        cells = tuple(cell.strip() for cell in text.split(",", _MAX_CELLS))
        form = tuple(map(_form, cells))
        if not any("#" in it for it in form):
            names = tuple(map(_name, cells)) if len(cells) > 1 else names
        elif writer or len(cells) > 1:
            told = names if len(names) == len(cells) else ("",) * len(cells)
            yield Listed(writer, "", told, cells, line.strip(), place, form)


def _name(text: str) -> str:
    return name_of(re.sub(r"\s*\[.*", "", text).replace(".", " "))


def _form(cell: str) -> str:
    """A cell with `#` for its number; of other words the power state alone."""
    found = _P["listed"].fullmatch(cell)
    if found:
        return f"{found['before']}# {found['unit']}"
    return cell if _P["state"].fullmatch(cell) else "@"


def _with_gpus(rows: Sequence[Listed]) -> Iterator[Listed]:
    """The rows with the number of their GPU: what comes first, where on each machine it counts up, from 0 on most."""
    by_host: dict[tuple[str, int], list[Listed]] = {}
    for row in rows:
        by_host.setdefault((row.host, len(row.cells)), []).append(row)
    first = [[it.cells[0] for it in own] for (_, width), own in by_host.items() if width > 1]
    counts = [list(map(int, it)) for it in first if all(cell.isdecimal() and len(cell) < 3 for cell in it)]
    rising = [it for it in counts if it == sorted(set(it)) and it[-1] < _MAX_INDEX]
    is_index = first and len(rising) == len(first) and sum(it[0] == 0 for it in rising) >= MOST * len(first)
    for row in rows:
        yield row._replace(gpu=row.cells[0]) if is_index and len(row.cells) > 1 else row


def fewer_than_peers(rows: Sequence[Listed]) -> list[Finding]:
    """Returns a finding for each row with less of what most others have alike: GPUs, lanes, a link's rate."""
    found: list[Finding] = []
    for column in range(len(rows[0].cells) if rows else 0):
        values = {row: number_of(it["value"]) for row in rows if (it := _P["listed"].fullmatch(row.cells[column]))}
        ((usual, count),) = Counter(values.values()).most_common(1) or [(0.0, 0)]
        if count < max(MIN_MEASURED, MOST * len(values)) or not _P["of_one_kind"].search(_what(rows[0], column)):
            continue
        found += [_fewer(row, row.cells[column], value, usual) for row, value in values.items() if value < usual]
    return found


def _what(row: Listed, column: int) -> str:
    """What a column counts: its name, or the words before its number; `count` of one that stands alone."""
    told = row.names[column] or row.form[column].partition("#")[0]
    return told or ("count" if len(row.cells) == 1 else "")


def _fewer(row: Listed, has: str, value: float, usual: float) -> Finding:
    host = {"host": row.host} if row.host else {}
    return (
        table("numbers")
        .sections["fewer"]
        .found(
            {"line": row.line[:300], **host},
            severity_of_ratio(value / usual),
            who=row.row.who,
            has=has,
            usual=f"{usual:g}",
        )
    )
