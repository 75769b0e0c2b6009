"""What the benchmarks share: a table goes between the marks of its name on a page, and nowhere else."""

from __future__ import annotations

import pytest
from common.figures import put_into
from support.paths import REPOSITORY

MARKS = ("ablation", "drains", "false alarms", "real runs", "results")
"""Those of docs/benchmark.md."""


@pytest.mark.parametrize("name", MARKS)
def test_a_table_is_put_between_the_marks_of_its_name(name: str) -> None:
    text = (REPOSITORY / "docs" / "benchmark.md").read_text()
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, after = text.partition(begin)[0], text.partition(end)[2]
    assert put_into(text, name, "new\n") == f"{before}{begin}\n\nnew\n\n{end}{after}"


def test_a_page_without_the_marks_is_left_alone() -> None:
    for page in ("", "<!-- noise -->", "<!-- end of noise -->"):
        with pytest.raises(ValueError, match="the page has no <!-- noise --> and <!-- end of noise -->"):
            put_into(page, "noise", "new")
