"""`laggard diagnose` on what services report of a job: RAS of NCCL and RCCL, recordings."""

from pathlib import Path

import pytest
from support.diagnosed import answer, diagnose_text
from support.flight_recorder import dump, entry, write_dumps

RAS_HEAD = """RCCL version 2.28.3 compiled with ROCm "7.0.2.0"
HIP runtime version 70051831, amdgpu driver version 70051831

Job summary
===========

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       7-8        16        15   RUNNING  {state}

"""
INCOMPLETE = """Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3534512 on node 10.0.0.180 managing GPU 3

#0-0 (488feb6f1c97a0e1) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 3 managed by process 3534512 on node 10.0.0.180
"""
DEAD = INCOMPLETE.replace(
    "\n#0-0",
    "\nDEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    "  Process 3534512 on node 10.0.0.180 managing GPU 3\n\n#0-0",
)
MISMATCH = """Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  15 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
"""
UNEVEN = """Warnings
========

#0-0 (0a93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  14 ranks have launched up to operation {many}
  {few}
"""
TWO = """2 ranks have launched up to operation {few}
  Rank 4 -- GPU 4 managed by process 3032 on node 192.0.2.24
  Rank 5 -- GPU 5 managed by process 3033 on node 192.0.2.24"""
NONE = """1 rank has not launched any operations
  Rank 4 -- GPU 4 managed by process 3032 on node 192.0.2.24"""


def found_in(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    diagnosis = diagnose_text(text)
    found = [(each.code, each.severity.value, each.device) for each in diagnosis.findings]
    return str(diagnosis.files[0].kind), found


@pytest.mark.parametrize(
    ("body", "state", "expected"),
    [
        ("Errors\n======\n\nWarnings\n========\n", "OK", []),
        (INCOMPLETE, "INCOMPLETE", [("JOB_COLLECTIVE_TIMEOUT", "critical", "rank 3 on 10.0.0.180")]),
        (DEAD, "INCOMPLETE", [("JOB_KILLED", "critical", "rank 3 on 10.0.0.180")]),
        (MISMATCH, "MISMATCH", [("RANK_LATE", "warning", "rank 7 on node1")]),
    ],
)
def test_the_text_of_ras(body: str, state: str, expected: list[tuple[str, str, str]]) -> None:
    assert found_in(RAS_HEAD.format(state=state) + body) == ("RAS report", expected)


@pytest.mark.parametrize(
    ("many", "few", "device", "says"),
    [
        (40, TWO.format(few=41), "14 ranks, all but ranks 4-5,", "ranks 4-5 are ahead"),
        (41, TWO.format(few=40), "ranks 4-5 on 192.0.2.24", "are behind"),
        (7, TWO.format(few=9000), "14 ranks, all but ranks 4-5,", "up to operation 7 when RAS looked"),
        (41, NONE, "rank 4 on 192.0.2.24", "is behind"),
    ],
)
def test_ras_lists_the_smaller_group_and_the_counts_tell_who_is_behind(
    many: int, few: str, device: str, says: str
) -> None:
    text = RAS_HEAD.format(state="MISMATCH") + UNEVEN.format(many=many, few=few)
    (found,) = diagnose_text(text).findings
    assert (found.code, found.severity.value, found.device) == ("RANK_LATE", "warning", device)
    assert says in found.summary


@pytest.mark.parametrize(
    "text", ['{"component": 3, "states": []}', '[{"checkName": []', '{"communicators": 7}', "[[[[1]]]]"]
)
def test_json_of_another_kind_is_none_of_these(text: str) -> None:
    assert found_in(text) == ("None", [])


def test_dumps_among_logs_name_the_rank_that_never_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = ("0", "default_pg", range(4))
    dumps = {
        rank: dump([world], [entry(world, "all_reduce", 1), entry(world, "all_reduce", 2, "started")], {0: (2, 1)})
        for rank in (0, 2, 3)
    }
    dumps[1] = dump([world], [entry(world, "all_reduce", 1)], {0: (1, 1)})
    write_dumps(tmp_path / "dumps", dumps)
    (tmp_path / "notes.txt").write_text("no log\n")
    _, document = answer(capsys, tmp_path)
    assert document["joined"]["ranks"] == [1] and document["verdict"] == "fail"
    assert {file["kind"] for file in document["files"]} == {"Flight Recorder dump", None}


def test_ras_names_the_rank_where_logs_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ras.txt").write_text(RAS_HEAD.format(state="INCOMPLETE") + INCOMPLETE)
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text("".join(f"step {step} loss 1.{rank}\n" for step in range(9)))
    joined = answer(capsys, tmp_path)[1]["joined"]
    assert joined["ranks"] == [3] and joined["timeline"][0]["path"].endswith("ras.txt")
