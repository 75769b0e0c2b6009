"""The rules of probes that are data: probes/rules/*.ini, each read where it is asked for first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from laggard.model import Severity

if TYPE_CHECKING:
    from laggard.catalogue.rules import Row, Table

_RULES: Final = os.path.join(os.path.dirname(__file__), "rules")


def rules(table: str) -> tuple[Row, ...]:
    """The rows of rules/TABLE.ini."""
    return _table(table).rows


def meanings(table: str, kind: str) -> Mapping[str, tuple[str, Severity]]:
    """What the rows of the sections of one kind say, and how bad it is, by their patterns."""
    return {row.pattern: (row.says, row.severity or Severity.WARNING) for row in _table(table).of(kind)}


def section(table: str, kind: str) -> Row:
    """The section `kind` of rules/TABLE.ini."""
    return _table(table).sections[kind]


def _table(name: str) -> Table:
    from laggard.catalogue.rules import read_table  # a healthy node needs no rule

    return read_table(os.path.join(_RULES, f"{name}.ini"))
