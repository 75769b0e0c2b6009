"""The answer of a command, as values: lines and tables, as plain text and broken into rows. Pure; without rich."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TextIO

from laggard.kit.words import ascii_line


class Line(NamedTuple):
    """One line of a script's or a log's text; on a terminal it is wrapped, with what follows its first row indented."""

    text: str
    style: str = ""
    """One of laggard.kit.dressed.STYLES; empty: none."""
    command: str = ""
    """The words that follow `text` and are to be copied: they are never broken."""
    whole: bool = False
    """All of it is to be copied, as a command or a row of numbers."""
    indent: int | None = None
    """Spaces before the rows after the first; None: two more than before the first."""

    @property
    def plain(self) -> str:
        return f"{self.text} {self.command}" if self.command else self.text


class Table(NamedTuple):
    """Rows under names: on a terminal as wide as it allows, for a script or a log in aligned columns."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    """The columns whose values stand at the right: numbers."""
    spare: tuple[str, ...] = ()
    """The columns that are left out, in this order, where the terminal is too narrow for all."""

    @property
    def plain(self) -> tuple[str, ...]:
        widths = [max(map(len, column)) for column in zip(self.names, *self.rows, strict=True)]
        return tuple(self._aligned(row, widths) for row in (self.names, *self.rows))

    def _aligned(self, row: tuple[str, ...], widths: list[int]) -> str:
        cells = zip(self.names, row, widths, strict=True)
        return "  ".join(f"{cell:{'>' if name in self.right else '<'}{most}}" for name, cell, most in cells).rstrip()

    def listed(self) -> tuple[str, ...]:
        """The rows as sentences, for a terminal that is too narrow for columns."""
        return tuple(", ".join(filter(None, map(_named, self.names, row))) for row in self.rows)


def _named(name: str, value: str) -> str:
    return f"{name} {value}" if name and value else value


Part = Line | Table


def plain_lines(parts: Iterable[Part]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        lines += part.plain if isinstance(part, Table) else (part.plain,)
    return lines


def plain_text(parts: Iterable[Part]) -> str:
    return "".join(f"{line}\n" for line in plain_lines(parts))


_WORD = re.compile(r"(?:[^\s`]*`[^`]*`)+\S*|\S+")  # what is in backquotes is to be copied, and is not broken


def rows(text: str, width: int, indent: int, cells: Callable[[str], int] = len) -> Iterator[tuple[int, int]]:
    """The places where each row of `text` begins and ends. No row has more cells than `width` unless one word has; the
    rows after the first stand behind `indent` spaces. `cells`: how many a text takes."""
    begin = end = 0
    room, first = width, True
    for word in _WORD.finditer(text):
        if first:
            end, first = word.end(), False
        elif cells(text[begin : word.end()]) <= room:
            end = word.end()
        else:
            yield begin, end
            begin, end, room = word.start(), word.end(), width - indent
    yield begin, end


def wrapped_for(stream: TextIO, text: str) -> str:
    """`text` in rows where `stream` is a terminal, else as it is."""
    if not stream.isatty():
        return text
    import shutil  # slow to import: argparse needs it only for --help

    return "\n  ".join(text[begin:end] for begin, end in rows(text, shutil.get_terminal_size().columns, 2))


_ITEM = re.compile(r"(\s*)([-*]|\d+\.) ")


def page_lines(text: str) -> list[Line]:
    """The page in Markdown, as this project's pages are written: paragraphs, lists, indented code, tables."""
    return [*_lines(text), Line("")]


def _lines(text: str) -> Iterator[Line]:
    paragraph: list[str] = []
    fenced = False
    for row in text.splitlines():
        fence = row.startswith("```")
        whole = fenced or fence or row.startswith(("    ", "|"))
        if whole or not row.strip() or row.startswith("#") or _ITEM.match(row):
            yield from _joined(paragraph)
            paragraph = []
        if fence:
            fenced = not fenced
        elif whole or not row.strip():
            yield Line(row, whole=whole)
        elif row.startswith("#"):
            yield Line(row.lstrip("# "), "name")
        else:
            paragraph.append(row)
    yield from _joined(paragraph)


def _joined(rows: list[str]) -> Iterator[Line]:
    if rows:
        item = _ITEM.match(rows[0])
        indent = len(rows[0]) - len(rows[0].lstrip(" "))
        yield Line(" " * indent + " ".join(row.strip() for row in rows), indent=item.end() if item else indent)


def ascii_parts(parts: Iterable[Part]) -> list[Part]:
    return [_ascii_part(part) for part in parts]


def _ascii_part(part: Part) -> Part:
    if isinstance(part, Line):
        return part._replace(text=ascii_line(part.text), command=ascii_line(part.command))
    rows = tuple(tuple(map(ascii_line, row)) for row in part.rows)
    names = {name: ascii_line(name) for name in part.names}
    return part._replace(
        names=tuple(names.values()),
        rows=rows,
        right=frozenset(names[name] for name in part.right),
        spare=tuple(names[name] for name in part.spare),
    )
