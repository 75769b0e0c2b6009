"""docs/constants.md tells the thresholds of the verdict, as the code has them."""

from __future__ import annotations

import re

from support.made_pages import expect_current
from support.paths import REPOSITORY

from laggard.locate.slow.significance import student

PAGE = REPOSITORY / "docs" / "location.md"


def test_the_page_of_constants_is_current_and_has_the_thresholds_alone() -> None:
    names = re.findall(r"^\| `(\w+)` \|", expect_current("constants_docs", "constants.md"), re.MULTILINE)
    assert {"SLOW_RATIO", "STANDARD_ERRORS", "LEVELS", "CHANNEL_COST_RATIO", "DECISION_ERRORS"} <= set(names)
    assert not {"MAX_BLOCKS", "MAX_REPLAYED", "BLOCK", "CONFIDENCE", "SEND", "STEP_COLUMNS"} & set(names)


def test_the_examples_of_students_t_are_the_codes() -> None:
    examples = re.findall(r"([\d.]+) at f = (\d+)", PAGE.read_text(encoding="utf-8"))
    assert examples and all(f"{student(float(freedom)):.1f}" == told for told, freedom in examples), examples
