"""The words of a command, in printable ASCII: names in it come from files and other machines."""

from __future__ import annotations

from collections.abc import Iterable

from laggard.terminal.parts import Line, Part
from laggard.text.words import ascii_line


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
