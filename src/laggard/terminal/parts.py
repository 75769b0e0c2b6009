"""The parts of what a command says, as values: lines and tables, as scripts and logs get them, with what a terminal
adds. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Line(NamedTuple):
    """One line of a script's or a log's text; on a terminal it is wrapped, with what follows its first row indented."""

    text: str
    style: str = ""
    """One of laggard.terminal.dressed.STYLES; empty: none."""
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
