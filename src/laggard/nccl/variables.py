"""NCCL's environment variables by name: what variable_table.py holds, and how NCCL's versions are written."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from laggard.nccl.variable_table import FOREIGN, FORMER, FURTHER, PREFIXES, TABLE, Variable, Version


@functools.cache
def variables() -> Mapping[str, Variable]:
    """By name: the 246 variables of NCCL, those of former versions, and those of plugins that stand alone."""
    return {row.name: row for text in (TABLE, FORMER, FURTHER) for row in map(_row, text.splitlines())}


@functools.cache
def own_variables() -> tuple[Variable, ...]:
    """The 246 variables that the user guide or the source of TABLE_VERSION names."""
    return tuple(map(_row, TABLE.splitlines()))


def reader(name: str) -> str | None:
    """Who reads `name` besides NCCL itself: a plugin, a framework, a build. None: nobody that is known."""
    if name in FOREIGN:
        return FOREIGN[name]
    return next((who for prefix, who in PREFIXES.items() if name.startswith(prefix)), None)


def parse_version(text: str) -> Version:
    """`2.27.5` and `2.27.5+cuda12.9` as (2, 27, 5); () where `text` is no version."""
    words = text.strip().split("+")[0].split("-")[0].split(".")
    return tuple(map(int, words)) if all(word.isdecimal() and word.isascii() for word in words) else ()


def version_of_code(code: int) -> str:
    """NCCL_VERSION_CODE as people write it: 22705 is 2.27.5; before 2.9 it had a digit less, 2708 is 2.7.8."""
    thousands = 10_000 if code >= 10_000 else 1_000
    return f"{code // thousands}.{code % thousands // 100}.{code % 100}"


def _row(line: str) -> Variable:
    name, kind, since, removed, default, values, documented, note = line.split("|")
    return Variable(name, kind, since, removed, default, values, documented == "d", note)
