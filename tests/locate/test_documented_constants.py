"""docs/location.md tells the thresholds of the verdict: its table of constants is the code's."""

from __future__ import annotations

import ast
import importlib
import re
from typing import Any

import pytest
from support.paths import REPOSITORY

from laggard.locate.slow.significance import student

PAGE = REPOSITORY / "docs" / "location.md"
ROW = re.compile(r"^\| `([A-Z_]+)` \| ([^|]+) \| ([\w/]+)\.py \|", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_the_table_has_the_thresholds() -> None:
    names = {name for name, _, _ in ROWS}
    assert len(ROWS) > 40 and {"SLOW_RATIO", "STANDARD_ERRORS", "LEVELS", "CHANNEL_COST_RATIO"} <= names


@pytest.mark.parametrize(("name", "value", "file"), ROWS, ids=[f"{file}:{name}" for name, _, file in ROWS])
def test_a_constant_on_the_page_is_the_codes(name: str, value: str, file: str) -> None:
    module = importlib.import_module(f"laggard.locate.{file.replace('/', '.')}")
    held: Any = getattr(module, name)
    assert _plain(held) == ast.literal_eval(value), f"docs/location.md has {name} = {value}; {file}.py has {held}"


def test_the_examples_of_students_t_are_the_codes() -> None:
    examples = re.findall(r"([\d.]+) at f = (\d+)", PAGE.read_text(encoding="utf-8"))
    assert examples and all(f"{student(float(freedom)):.1f}" == told for told, freedom in examples), examples


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
