"""The rules of `laggard diagnose`, one file for each source of lines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from laggard.catalogue.rules import Row, Table, read_table

__all__ = ("Row", "Table", "table")

_FOLDER: Final = Path(__file__).parent


def table(name: str) -> Table:
    """The file of this name."""
    return read_table(_FOLDER / f"{name}.ini")
