"""The kinds of failures by their own words: each row has a text, and which of several failures is told follows from
them, whatever program printed them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.diagnosed import diagnose_text
from support.paths import DATA

from laggard.diagnose.kinds import kind_of, own_advice
from laggard.diagnose.rules import table

ROWS = [json.loads(line) for line in (DATA / "failure_kinds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["text"][:40])
def test_a_text_is_of_its_kind(row: dict[str, Any]) -> None:
    found = kind_of(row["text"])
    assert (found.kind if found else "") == row["kind"]
    if "advice" in row:
        assert own_advice(row["text"]) == row["advice"]


def test_each_kind_has_a_text_and_says_what_mends_it() -> None:
    sections = table("failure_kinds").sections
    assert {row["kind"] for row in ROWS} - {""} == sections.keys() - {"advice"}
    assert all(section.fix.text for kind, section in sections.items() if kind != "advice")


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
LOADER = 'Exception in thread Thread-7 (_pin_memory_loop):\nTraceback (most recent call last):\n  File "p.py", line 5\n'
MMAP = "RuntimeError: unable to mmap 3110400 bytes from file </torch_81>: Cannot allocate memory (12)\n"
WAITED = (
    "[rank0]:[E421 01:04:30.934157590 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
)
WORK = "WorkNCCL(SeqNum=93202, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600041 ms\n"


STEP_OF_SLURM = "srun: error: launch failed on node cn131: Job credential expired\n"
CONTAINER = "error: write failed because No space left on device\nerror: couldn't start container\n"
ADAPTER = "n1:1:2 [0] NCCL WARN NET/IB : Got async event : local catastrophic error\n"
UNHANDLED = "RuntimeError: NCCL error in: P.cpp:272, unhandled system error\n"


@pytest.mark.parametrize(
    ("text", "says", "mends"),
    [
        (f"{STEP_OF_SLURM}{TRACEBACK}RuntimeError: connect() timed out.\n", "credential expired", "chrony"),
        (f"{LOADER}{MMAP}{WAITED}{WORK}", "unable to mmap", "vm.max_map_count"),
        (f"{CONTAINER}srun: error: n3: task 0: Exited with exit code 1\n", "No space left", "Make room"),
        (f"{ADAPTER}{TRACEBACK}{UNHANDLED}", "local catastrophic error", "firmware"),
        ("bash: torchrun: command not found\nExit code: 127\n", "torchrun", "PATH"),
    ],
)
def test_what_brings_it_about_is_told_before_what_follows(text: str, says: str, mends: str) -> None:
    first = diagnose_text(text).findings[0]
    assert says in first.summary
    assert mends in first.fix.text


def test_training_after_a_failure_makes_it_history() -> None:
    went_on = "".join(f"step {number} loss 2.{number} lr 0.1\n" for number in range(6))
    text = (
        f"error: write failed because No space left on device\n{went_on}{TRACEBACK}RuntimeError: connect() timed out.\n"
    )
    assert "No space" not in diagnose_text(text).findings[0].summary


def test_the_value_of_a_variable_that_mends_it_is_told() -> None:
    start = "n1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n"
    error = "RuntimeError: NCCL error in: N.cpp:94, internal error\nncclInternalError: Internal check failed.\n"
    last = "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)\n"
    assert (
        "NCCL_SOCKET_IFNAME=eth2" in diagnose_text(f"{start}{TRACEBACK}{error}Last error:\n{last}").findings[0].fix.text
    )


def test_a_warning_that_comes_until_the_end_forbids_that_all_is_well() -> None:
    warned = "".join(f"[warn] allreduce still not ready after {number}00 s\n" for number in range(3, 9))
    trained = "".join(f"step {number} loss 2.{number} lr 0.1\n" for number in range(6))
    assert diagnose_text(f"started\n{warned}").files[0].left
    assert not diagnose_text(f"started\n{warned}{trained}").files[0].left
