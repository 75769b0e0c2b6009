"""Tables of a test's cases that are data: tests/data/rows."""

import json
from typing import Any

import pytest

from support.paths import TESTS


def rows(name: str) -> pytest.MarkDecorator:
    """The test runs for each line of a table: an object whose keys are the test's parameters, and `#` a comment. A
    list comes as a tuple."""
    lines = (TESTS / "data" / "rows" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    found = [{key: _as_tuples(value) for key, value in json.loads(line).items() if key != "#"} for line in lines]
    return pytest.mark.parametrize(tuple(found[0]), [tuple(row.values()) for row in found])


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
