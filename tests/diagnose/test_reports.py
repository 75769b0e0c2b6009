"""`laggard diagnose` on what services report of a job or a node: RAS of NCCL and RCCL, gpud, NVSentinel, recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.diagnosed import answer, diagnose_text
from support.fake_ras import FakeCommunicator, FakeRank, status_json
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
XID_STATE = {
    "component": "accelerator-nvidia-error-xid",
    "states": [{"name": "error_xid", "health": "Unhealthy", "reason": "XID 79 detected on GPU 0000:9b:00"}],
}
HEALTHY_STATE = {"component": "cpu", "states": [{"name": "cpu", "health": "Healthy"}]}
HEALTH_EVENT = {
    "version": 1,
    "agent": "gpu-health-monitor",
    "componentClass": "GPU",
    "checkName": "GpuXidError",
    "isFatal": True,
    "isHealthy": False,
    "message": "XID error",
    "errorCode": ["79"],
    "entitiesImpacted": [{"entityType": "gpu", "entityValue": "0"}],
    "nodeName": "n2",
}


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


def test_ranks_that_are_ahead_are_not_accused_by_the_json_either() -> None:
    ranks = [FakeRank(rank, "10.0.0.1", 100 + rank, counts={"AllReduce": 7 + (rank == 2)}) for rank in range(4)]
    (found,) = diagnose_text(status_json([FakeCommunicator(ranks, size=4)]).decode()).findings
    assert found.device == "3 ranks, all but rank 2," and "rank 2 is ahead" in found.summary


@pytest.mark.parametrize("nccl", [(2, 28, 9), (2, 30, 7)])
@pytest.mark.parametrize("dead", [False, True])
def test_the_json_of_ras(nccl: tuple[int, int, int], dead: bool) -> None:
    there = [FakeRank(rank, "10.0.0.1", 100 + rank, counts={"AllReduce": 7}) for rank in range(3)]
    gone = FakeRank(3, "10.0.0.2", 103, missing=True, unresponsive=not dead, dead=dead)
    text = status_json([FakeCommunicator([*there, gone], size=4)], nccl).decode()
    code = "JOB_KILLED" if dead else "JOB_COLLECTIVE_TIMEOUT"
    assert found_in(text) == ("RAS report (JSON)", [(code, "critical", "rank 3 on 10.0.0.2")])
    without = "\n".join(line for line in text.split("\n") if "secondary_hash" not in line)  # RCCL's has none
    assert found_in(without) == ("RAS report (JSON)", [(code, "critical", "rank 3 on 10.0.0.2")])


def test_a_rank_that_launched_less_is_a_warning() -> None:
    ranks = [FakeRank(rank, "10.0.0.1", 100 + rank, counts={"AllReduce": 7 - (rank == 2)}) for rank in range(4)]
    kind, found = found_in(status_json([FakeCommunicator(ranks, size=4)]).decode())
    assert (kind, found) == ("RAS report (JSON)", [("RANK_LATE", "warning", "rank 2 on 10.0.0.1")])


def test_states_and_events_of_gpud() -> None:
    assert found_in(json.dumps([XID_STATE, HEALTHY_STATE])) == (
        "gpud states and events",
        [("GPU_XID", "critical", "accelerator-nvidia-error-xid")],
    )
    assert found_in(json.dumps([HEALTHY_STATE]))[1] == []
    event = {"time": "2026-11-26T05:17:20Z", "name": "memory_oom", "type": "Warning", "message": "Out of memory"}
    events = [{"component": "memory", "startTime": "2026-11-26T00:00:00Z", "endTime": "", "events": [event]}]
    assert found_in(json.dumps(events))[1] == [("JOB_HOST_OUT_OF_MEMORY", "warning", "memory")]


def test_health_events_of_nvsentinel() -> None:
    expected = ("NVSentinel health events", [("GPU_XID", "critical", "GPU 0")])
    assert found_in(json.dumps(HEALTH_EVENT)) == expected
    stored = {"healthevent": {name.lower(): value for name, value in HEALTH_EVENT.items()}}
    assert found_in(json.dumps(stored) + "\n" + json.dumps(stored | {"_id": 2})) == expected
    assert found_in(json.dumps(HEALTH_EVENT | {"isHealthy": True}))[1] == []


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
