"""The rules of `laggard diagnose`, one file for each source of lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from laggard.catalogue.rules import Row, Table, read_table

__all__ = ("Row", "Table", "patterns", "table", "words")

_FOLDER: Final = Path(__file__).parent


def table(name: str) -> Table:
    """The file of this name."""
    return read_table(_FOLDER / f"{name}.ini")


def patterns(name: str, prefix: str = "") -> dict[str, re.Pattern[str]]:
    """The patterns of the file of this name, by section; with a prefix: those whose sections begin with it, without."""
    return {row.kind.removeprefix(prefix): row.regex for row in table(name).rows if row.kind.startswith(prefix)}


def words(kind: str) -> tuple[str, ...]:
    """The words of this kind in rules/words.ini."""
    return tuple(word.replace("~", " ") for row in table("words").of(kind) for word in row.pattern.split())
