"""A page of the docs as lines for a terminal: paragraphs in one, headings in bold, what is to be copied left whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from laggard.terminal.parts import Line

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
