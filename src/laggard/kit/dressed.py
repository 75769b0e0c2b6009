"""Lines and tables as rich draws them on a terminal: wrapped to its width, with the words that matter in colour."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from laggard.kit.parts import Line, Part, Table, rows

MAX_COLUMNS: Final = 100
"""The most columns of prose: longer lines of prose are hard to read, however wide the terminal is. Tables take what
there is."""

STYLES: Final = {
    "ok": "bold green",
    "fail": "bold red",
    "unknown": "bold yellow",
    "critical": "red",
    "warning": "yellow",
    "info": "cyan",
    "name": "bold",
    "aside": "dim",
    "plain": "",  # also of what is to be copied: a file's text
}
_VALUES: Final = {
    **STYLES,
    "ok": "green",
    "fail": "red",
    "skipped": "dim",
    "unknown": "yellow",
    "faster": "green",
    "slower": "red",
    "low": "red",
    "not told apart": "yellow",
}
"""The style of a cell that is one of these words."""

_GAP: Final = 2  # cells between two columns
_COPIED = re.compile(r"`[^`]+`")
_CODE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_LABEL = re.compile(r"^\s*(?:\d+\. )?(?:What to (?:do|change)|what to do)\b.*?:")


class Wrapped:
    """A line that takes as many rows as it needs."""

    def __init__(self, text: Text, indent: int) -> None:
        self.text, self.indent = text, indent

    def rows(self, width: int) -> list[tuple[int, int]]:
        """The places where each row begins and ends."""
        return list(rows(self.text.plain, min(width, MAX_COLUMNS), self.indent, cell_len))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, (begin, end) in enumerate(self.rows(options.max_width)):
            row = Text(" " * self.indent if number else "", no_wrap=True, overflow="ignore")
            yield row.append_text(self.text[begin:end])


def dressed(parts: Iterable[Part]) -> RenderableType:
    return Group(*(_Fitting(part) if isinstance(part, Table) else _line(part) for part in parts))


def _line(line: Line) -> RenderableType:
    if line.whole or not line.text:
        text = _text(line)
        text.no_wrap, text.overflow = True, "ignore"
        text.stylize("cyan" if line.whole and not line.style else "")
        return text
    return _Following(wrapped(line), line.command) if line.command else wrapped(line)


def wrapped(line: Line) -> Wrapped:
    indent = len(line.text) - len(line.text.lstrip(" ")) + 2 if line.indent is None else line.indent
    return Wrapped(_text(line), indent)


def _text(line: Line) -> Text:
    text = Text(line.text, style=STYLES.get(line.style, ""))
    text.highlight_regex(_CODE, "bold")
    text.highlight_regex(_LABEL, "bold")
    text.highlight_regex(_COPIED, "cyan")
    return text


class _Following:
    """A line, and a command to copy: behind it where there is room, else on a row of its own."""

    def __init__(self, line: Wrapped, command: str) -> None:
        self.line, self.command = line, command

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.line.text
        if cell_len(text.plain) + 1 + cell_len(self.command) <= min(options.max_width, MAX_COLUMNS):
            yield text.copy().append(" ").append(self.command, style="cyan")
        else:
            yield self.line
            row = Text(" " * self.line.indent, no_wrap=True, overflow="ignore")
            yield row.append(self.command, style="cyan")


class _Fitting:
    """A table with as many of its columns as there is room for; its rows as sentences, wrapped, if a value would be cut
    in the ones that have to stay."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = list(self.table.names)
        for spare in (*self.table.spare, None):
            drawn = self._drawn(names)
            if (
                spare is None
                or console.measure(drawn, options=options.update(max_width=1 << 16)).maximum <= options.max_width
            ):
                cut = self._least_width(names) > options.max_width
                yield dressed(map(Line, self.table.listed())) if cut else drawn
                return
            names.remove(spare)

    def _least_width(self, names: list[str]) -> int:
        """Cells of all columns with whole values; of the last one, which wraps, the longest word."""
        places = [self.table.names.index(name) for name in names]
        columns = [[name, *(row[place] for row in self.table.rows)] for name, place in zip(names, places, strict=True)]
        words = [word for value in columns[-1] for word in value.split() or ("",)]
        widths = [max(map(cell_len, values)) for values in (*columns[:-1], words)]
        return sum(widths) + _GAP * (len(widths) - 1)

    def _drawn(self, names: list[str]) -> RichTable:
        drawn = RichTable(box=None, pad_edge=False, header_style="bold", expand=False)
        places = [self.table.names.index(name) for name in names]
        last = len(self.table.names) - 1
        for name, place in zip(names, places, strict=True):
            right = name in self.table.right
            drawn.add_column(Text(name), justify="right" if right else "left", no_wrap=right or place != last)
        for row in self.table.rows:
            drawn.add_row(*(_cell(row[place]) for place in places))
        return drawn


def _cell(value: str) -> Text:
    return Text(value, style=_VALUES.get(value, ""))
