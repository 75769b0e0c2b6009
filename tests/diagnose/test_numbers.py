"""What `laggard diagnose` makes of numbers alone: the texts of tests/data/numbers.jsonl, each fault beside healthy
texts of its form. Of each it says `why`, the `text`, and all that it `finds`: code, device and some of its words."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text
from support.paths import DATA

ROWS: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "numbers.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[row["why"] for row in ROWS])
def test_what_stands_out_is_told_and_nothing_else(row: dict[str, Any]) -> None:
    found = [it for it in diagnose_text(row["text"]).findings if it.severity.value != "info"]
    assert [(it.code, it.device) for it in found] == [(code, device) for code, device, _ in row["finds"]], found
    for it, (_, _, words) in zip(found, row["finds"], strict=True):
        assert words in it.summary
        assert str(it.evidence.get("line", "")).strip() in row["text"]


@given(
    st.sampled_from([row["text"] for row in ROWS]),
    st.integers(0, 900),
    st.text("0123456789.,:|=()[] \tsm/GB", max_size=60),
)
def test_a_text_that_is_cut_or_strange_is_read(text: str, end: int, rest: str) -> None:
    for each in diagnose_text(text[:end] + rest).findings:
        assert each.summary and each.fix.text


@pytest.mark.parametrize(
    "line", ["time " * 300, "1" * 900, "a (" * 300, "1,000" * 200, "step 1 " + "data 1.0 (" * 90, "a b" * 300]
)
def test_any_text_is_judged_within_bounds(line: str) -> None:
    assert len(diagnose_text(f"{line}\n" * (300_000 // len(line))).findings) <= 16
