"""Looks up NCCL's environment variables in variable_table.py, and reads and writes NCCL's version numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

from laggard.nccl.variable_table import (
    CURRENT,
    INTERNAL,
    OTHER_READERS,
    PLUGIN_PREFIXES,
    REMOVED,
    SECRET,
    Category,
    Variable,
    Version,
)

_VERSION_WORD = re.compile(r"[0-9]{1,9}")


@functools.cache
def variables() -> Mapping[str, Variable]:
    """The known variables by name: the variables of TABLE_VERSION, those of earlier versions, and those of plugins
    without a prefix of their own."""
    return {variable.name: variable for rows in (CURRENT, REMOVED, INTERNAL) for variable in parse_rows(rows)}


def parse_rows(rows: str) -> Iterator[Variable]:
    """The variables in rows of variable_table.py, one a line, with their fields separated by `|`."""
    for row in rows.splitlines():
        name, category, since, removed, default, values, documented, note = row.split("|")
        yield Variable(name, Category(category), since, removed, default, values, documented == "d", note)


def other_reader(name: str) -> str | None:
    """The software besides NCCL that reads the variable `name`: a plugin, a framework, a build. None: none that is
    known."""
    if name in OTHER_READERS:
        return OTHER_READERS[name]
    return next((plugin for prefix, plugin in PLUGIN_PREFIXES.items() if name.startswith(prefix)), None)


def may_be_shown(name: str) -> bool:
    """Whether the value of the variable `name` may stand in reports and files: NCCL or a plugin that is known reads it,
    and it is none that only the ranks may know. The value of any other variable may be a password."""
    return (name in variables() or other_reader(name) is not None) and name not in SECRET


def parse_version(text: str) -> Version:
    """`2.27.5` and `2.27.5+cuda12.9` as (2, 27, 5); () where `text` is no version."""
    words = text.strip().split("+")[0].split("-")[0].split(".")
    return tuple(map(int, words)) if all(map(_VERSION_WORD.fullmatch, words)) else ()


def version_of_code(code: int) -> str:
    """NCCL_VERSION_CODE as people write it: 22705 is 2.27.5. Before 2.9 the code had one digit less: 2708 is 2.7.8."""
    thousands = 10_000 if code >= 10_000 else 1_000
    return f"{code // thousands}.{code % thousands // 100}.{code % 100}"
