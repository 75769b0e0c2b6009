"""The layer below the rules: lines that say by themselves that something failed, of tools that no rule knows, and
everyday texts with the same words that say nothing of the kind. The texts are data, tests/data/failing_lines.jsonl."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import answer, diagnose_text
from support.paths import DATA

from laggard.diagnose.failing_lines import MAX_LEFT, read_left
from laggard.model import Verdict

ROWS = [json.loads(line) for line in (DATA / "failing_lines.jsonl").read_text().splitlines()]
HEALTHY = [path for path in sorted((DATA / "field").glob("jobs-ok-*/*")) if path.is_file()]

WATCHDOG = (
    "[rank18]:[E603 17:48:01.005271823 ProcessGroupNCCL.cpp:632] [Rank 18] Watchdog caught collective operation timeout"
    ": WorkNCCL(SeqNum=98459, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=1800000) ran for 1800068 "
    "milliseconds before timing out.\n"
)
RAS = """NCCL version 2.26.2 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING      OK

Errors
======

Warnings
========

"""


@pytest.mark.parametrize("row", [row for row in ROWS if row["line"]], ids=lambda row: row["name"])
def test_the_line_that_says_most_comes_first(row: dict[str, Any]) -> None:
    left = read_left([row["text"]])
    first = left.lines[0]
    assert first.line == row["line"], left
    assert row["who"] in first.who and row["reason"] in first.reason


@pytest.mark.parametrize("row", [row for row in ROWS if not row["line"]], ids=lambda row: row["name"])
def test_everyday_words_say_nothing(row: dict[str, Any]) -> None:
    assert not read_left([row["text"]]).lines


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.parent.name)
def test_of_healthy_jobs_no_line_is_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not [line for file in answer(capsys, path)[1]["files"] for line in file["left"]]


@pytest.mark.parametrize("text", [RAS + WATCHDOG, WATCHDOG + RAS])
def test_one_thing_in_a_paste_hides_no_other(text: str) -> None:
    result = diagnose_text(text)
    assert [(found.code, found.device) for found in result.findings] == [("JOB_COLLECTIVE_TIMEOUT", "rank 18")]


def test_a_line_that_no_reader_took_forbids_that_all_is_well(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The limits are well; what the program printed below them is not."""
    path = tmp_path / "paste"
    path.write_text("$ cat /proc/uptime\n1.0 2.0\n$ ./serve\nCouldn't open device 3 on n7: Input/output error\n" + RAS)
    status, document = answer(capsys, path)
    assert (status, document["verdict"], document["findings"]) == (2, "unknown", [])
    (left,) = [line for file in document["files"] for line in file["left"]]
    assert (left["line"], left["text"]) == (4, "Couldn't open device 3 on n7: Input/output error")


def test_what_a_finding_quotes_is_not_told_again() -> None:
    head = "LAST SEEN   TYPE      REASON             OBJECT   MESSAGE\n"
    result = diagnose_text(head + "2m   Warning   CrashLoopBackOff   pod/w0   Back-off restarting failed container\n")
    assert [found.severity.value for found in result.findings] == ["warning"]
    assert result.verdict is Verdict.FAIL and not [line for file in result.files for line in file.left]


def test_of_very_many_lines_a_few_are_kept() -> None:
    left = read_left(["".join(f"ERROR worker {number} could not start\n" for number in range(10_000))])
    assert (len(left.lines), left.total, left.lines[0].line) == (MAX_LEFT, 10_000, 1)


@given(st.lists(st.sampled_from([row["text"] for row in ROWS]) | st.text(), max_size=5))
def test_any_text_is_read_in_any_pieces(texts: list[str]) -> None:
    lines = re.split(r"(?<=\n)", "\n".join(texts))
    whole, pieces = read_left(["".join(lines)]), read_left(lines)
    assert (whole.total, whole.read) == (pieces.total, pieces.read)
