"""`laggard diagnose` on what tools print, each fault beside its healthy look-alike: the lines of tests/data/texts.

It has a file of lines for each family of tools. Each line has a `text`, its `kind`, and all that it `finds`: code,
severity and device. `unknown` is a part of what is said of a text that does not tell enough, `says` one of the first
finding's summary; `evidence` has some of each finding's evidence, and `why` tells what the text is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text
from support.paths import DATA

ROWS: list[tuple[str, dict[str, Any]]] = [
    (f"{path.stem}-{number}", json.loads(line))
    for path in sorted((DATA / "texts").iterdir())
    for number, line in enumerate(path.read_text().splitlines(), 1)
]
FIRST = {name.split("-")[0]: row["text"] for name, row in reversed(ROWS) if row["finds"]}
"""A text of each family in which something is found."""
MAX_SHOWN = 64
"""The findings of one tool, however long a paste is."""


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[name for name, _ in ROWS])
def test_what_a_tool_prints_is_judged(row: dict[str, Any]) -> None:
    result = diagnose_text(row["text"])
    found = [[each.code, each.severity.value, each.device] for each in result.findings]
    assert (found, {file.kind for file in result.files}) == (row["finds"], {row["kind"]})
    if "unknown" in row:
        assert result.files[0].unknown and row["unknown"] in result.files[0].unknown
    assert "says" not in row or row["says"] in result.findings[0].summary
    for each, expected in zip(result.findings, row.get("evidence", [{}] * len(found)), strict=True):
        assert expected.items() <= each.evidence.items()
    if not found:
        assert result.verdict.value == ("unknown" if "unknown" in row else "ok")


@pytest.mark.parametrize("family", ["dcgmi", "hl_smi", "nvlink"])
def test_what_stands_in_a_jobs_log_is_left_to_the_job(family: str) -> None:
    log = FIRST[family] + "".join(f"[rank{n % 8}]: step {n} loss {3 - n / 100:.2f}\n" for n in range(200))
    assert diagnose_text(log).files[0].kind == "job log"


HEADS = (
    *("link mlx5_0/1 state ACTIVE \n", "NIC statistics:\n     a_b: 1\n", "Operational Info\n---\n", "a: CA 'x'\n"),
    *("-I- Discovering\n-E- x\n", "root@a:~# x\n", "$ df\n", "Name: x\n", "- name: x\n", "LINK METRIC TABLE:\n"),
)


@pytest.mark.parametrize("text", [*FIRST.values(), *HEADS])
def test_any_text_is_judged_within_bounds(text: str) -> None:
    for long in (text * (200_000 // len(text)), text + "a 1 D " * 40_000):
        assert len(diagnose_text(long).findings) <= MAX_SHOWN


@given(st.sampled_from([row["text"] for _, row in ROWS]), st.integers(0, 900),
       st.text(alphabet="|+-: GPU0NV\n\t%", max_size=80))  # fmt: skip
def test_a_text_that_is_cut_or_strange_is_read(text: str, end: int, rest: str) -> None:
    for each in diagnose_text(text[:end] + rest).findings:
        assert each.summary and each.fix.text
