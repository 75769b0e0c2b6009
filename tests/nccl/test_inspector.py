"""NCCL Inspector's files, in `laggard diagnose` and in `laggard locate --trace`: who is regularly the last to come."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.inspector_files import job, line, metrics, send_line, write

from laggard.cli import main

COLLECTIVES = 40


def run(capsys: pytest.CaptureFixture[str], command: str, *paths: Path) -> tuple[int, dict[str, Any]]:
    words = ["locate", "--trace"] if command == "locate" else ["diagnose"]
    status = main([*words, *map(str, paths), "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


def late(rank: int, by: int = 4000, ranks: int = 4, collectives: int = COLLECTIVES) -> list[list[int]]:
    """All ranks run 1000 us; the others wait for the late one."""
    return [
        [1000 + number % 7 + each % 3 + (0 if each == rank else by) for each in range(ranks)]
        for number in range(collectives)
    ]


def even(collectives: int = COLLECTIVES) -> list[list[int]]:
    """Another rank is the last each time, by little."""
    return [[1000 + (200 if each != number % 4 else 0) for each in range(4)] for number in range(collectives)]


def test_the_rank_that_runs_the_shortest_came_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path / "logs", job(late(2)))
    status, location = run(capsys, "locate", tmp_path / "logs")
    (culprit,) = location["culprits"]
    assert (status, location["verdict"], location["world_size"], location["ranks_seen"]) == (1, "fail", 4, 4)
    assert (culprit["kind"], culprit["ranks"], culprit["node"]) == ("slow_compute", [2], "gpu01")
    assert "40 of 40 collectives" in culprit["evidence"][0] and "pid 4102" in culprit["evidence"]
    status, diagnosis = run(capsys, "diagnose", *paths)
    (found,) = diagnosis["findings"]
    assert (found["code"], found["device"], found["severity"]) == ("RANK_LATE", "rank 2 on gpu01", "warning")
    assert {file["kind"] for file in diagnosis["files"]} == {"NCCL Inspector log"}
    assert (status, diagnosis["verdict"]) == (1, "fail")


def test_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "logs", job(late(2)))
    assert main(["locate", "--trace", str(tmp_path / "logs")]) == 1
    assert capsys.readouterr().out.startswith("Rank 2 on gpu01 is slow.\n")


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (even(), "each is the last in turn"),
        (late(2, by=15), "by no more than kernels differ"),
        (late(2, by=60), "a 17th"),
    ],
)
def test_nobody_is_named_where_nobody_is_regularly_late(
    times: Sequence[Sequence[int]], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write(tmp_path / "logs", job(times))
    status, location = run(capsys, "locate", tmp_path / "logs")
    assert (status, location["verdict"], location["culprits"]) == (0, "ok", []), why
    assert [note["kind"] for note in location["notes"]] == ["nobody_late"]
    status, diagnosis = run(capsys, "diagnose", *paths)
    assert (status, diagnosis["findings"]) == (0, [])
    assert main(["locate", "--trace", str(tmp_path / "logs")]) == 0
    assert capsys.readouterr().out.startswith("No rank is slow: 4 ranks looked at.")


def test_a_rank_that_another_one_delays_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 2 is late; rank 3, its partner in a communicator of two, waits for it there and is late elsewhere for it."""
    logs = {rank: "" for rank in range(6)}
    for number in range(COLLECTIVES):
        for place, (rank, time) in enumerate(((2, 1000), (3, 5000))):
            logs[rank] += line("0x2", place, 2, number, time, host="gpu01", pid=4100 + rank)
        for place, (rank, time) in enumerate(((3, 1000), (4, 5000), (5, 5000))):
            logs[rank] += line("0x3", place, 3, number, time, host=f"gpu{rank // 2:02d}", pid=4100 + rank)
    write(tmp_path / "logs", {rank: text for rank, text in logs.items() if text})
    _, location = run(capsys, "locate", tmp_path / "logs")
    assert [(it["node"], it["evidence"][-1]) for it in location["culprits"]] == [("gpu01", "pid 4102")]


def test_operations_are_numbered_each_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By number alone, rank 1's all-gathers would be compared with rank 0's all-reduces."""
    logs = {0: "", 1: ""}
    for number in range(COLLECTIVES):
        for rank in logs:
            logs[rank] += line("0x1", rank, 2, number, 5000, "AllReduce")
            logs[rank] += line("0x1", rank, 2, number, 1000, "AllGather")
    logs[1] = "".join(sorted(logs[1].splitlines(True)))
    write(tmp_path / "logs", logs)
    status, location = run(capsys, "locate", tmp_path / "logs")
    assert (status, location["verdict"]) == (0, "ok")
    assert "80 collectives" in location["notes"][0]["text"]


@pytest.mark.parametrize("operation", ["Broadcast", "Reduce"])
def test_operations_in_which_not_all_wait_say_nothing(
    operation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = {rank: text.replace("AllReduce", operation) for rank, text in job(late(2)).items()}
    write(tmp_path / "logs", logs)
    status, location = run(capsys, "locate", tmp_path / "logs")
    assert (status, location["verdict"], location["culprits"]) == (2, "unknown", [])


def test_without_all_ranks_nothing_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = job(late(2))
    paths = write(tmp_path / "logs", {rank: logs[rank] for rank in (0, 1, 3)})
    for command in ("locate", "diagnose"):
        status, document = run(capsys, command, *paths)
        assert (status, document["verdict"]) == (2, "unknown")
        assert "give the files of all their ranks" in json.dumps(document)


def test_replays_of_a_graph_have_one_number_and_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = {rank: "".join(line("0x1", rank, 4, 7, row[rank]) for row in late(2)) for rank in range(4)}
    write(tmp_path / "logs", logs)
    status, location = run(capsys, "locate", tmp_path / "logs")
    assert (status, location["culprits"]) == (2, [])
    assert "0 collectives were recorded" in location["notes"][-1]["text"]


def test_times_of_the_host_s_clock_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "logs", {rank: text.replace("kernel_gpu", "kernel_cpu") for rank, text in job(late(2)).items()})
    status, location = run(capsys, "locate", tmp_path / "logs")
    assert (status, location["culprits"]) == (2, [])
    assert "160 records have the host's clock" in location["notes"][0]["text"]


BAD = (
    '{"header":{"id":"0x1"',
    "not JSON at all",
    "[" * 10_000,
    line("0x1", 9, 4, 1, 100),
    line("0x1", 0, 4, 1, 100).replace('"coll_exec_time_us":100', '"coll_exec_time_us":-1'),
    line("0x1", 0, 4, 1, 100).replace('"coll_exec_time_us":100', '"coll_exec_time_us":1' + "0" * 400),
    line("0x1", 0, 4, 1, 100).replace('"coll_sn":1', '"coll_sn":"one"'),
    line("0x1", 0, 4, 1, 100).replace("gpu00", "g" * 300),
    line("0x1", 0, 4, 1, 100).replace('"hostname":"gpu00"', '"hostname":"\\u001b[31m"'),
)


def test_torn_and_impossible_lines_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = job(late(2))
    logs[0] += send_line("0x1", 0, 4, 1) + "".join(text.rstrip("\n") + "\n" for text in BAD) + logs[1][:150]
    paths = write(tmp_path / "logs", logs)
    status, location = run(capsys, "locate", tmp_path / "logs")
    assert (status, [it["ranks"] for it in location["culprits"]]) == (1, [[2]])
    assert location["notes"][0]["text"] == f"{len(BAD) + 1} torn or impossible lines were left out"
    status, diagnosis = run(capsys, "diagnose", *paths)
    assert (status, diagnosis["verdict"]) == (1, "fail")


def test_packed_files_are_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [path.with_suffix(".gz") for path in write(tmp_path, job(late(2)))]
    for path in paths:
        path.write_bytes(gzip.compress(path.with_suffix(".log").read_bytes()))
    assert [it["ranks"] for it in run(capsys, "locate", *paths)[1]["culprits"]] == [[2]]


def test_metrics_cannot_tell_who_came_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl_inspector_metrics_x.prom"
    path.write_text(metrics(range(4)))
    status, location = run(capsys, "locate", path)
    assert (status, location["verdict"]) == (2, "unknown")
    assert "do not tell collectives apart" in location["notes"][0]["text"]
    status, diagnosis = run(capsys, "diagnose", path)
    assert (status, diagnosis["files"][0]["kind"]) == (2, None)
