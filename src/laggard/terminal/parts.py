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
    """Rows under names. `plain`: what a script or a log gets in its place, line by line."""

    plain: tuple[str, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    """The columns whose values stand at the right: numbers."""
    spare: tuple[str, ...] = ()
    """The columns that are left out, in this order, where the terminal is too narrow for all."""


Part = Line | Table


def plain_lines(parts: Iterable[Part]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        lines += part.plain if isinstance(part, Table) else (part.plain,)
    return lines


def plain_text(parts: Iterable[Part]) -> str:
    return "".join(f"{line}\n" for line in plain_lines(parts))
