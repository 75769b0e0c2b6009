"""Faults in a running job with real ranks, an agent and a collector."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.paths import TRAINING
from support.warm import Warm

pytestmark = pytest.mark.slow
ALL_REDUCE_LOOP = TRAINING / "all_reduce_loop.py"


@pytest.fixture
def cluster(tmp_path: Path, warm_deepspeed: Warm) -> Iterator[Cluster]:
    made = Cluster(tmp_path, warm_deepspeed)
    yield made
    made.end()


def test_a_rank_that_is_killed_during_a_step_died_first_and_its_victims_did_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    ranks = cluster.train(3, "--steps", "100000", extra={"LAGGARD_RECORD_DIR": str(tmp_path / "recording")})
    cluster.until(lambda location: (location["window"]["last_step"] or 0) > 15)
    before = time.time()
    ranks[1].send_signal(signal.SIGKILL)
    assert ranks[1].wait() == -signal.SIGKILL
    over = time.time()
    first = dead(cluster.until(lambda location: dead(location)))
    assert first["ranks"] == [1] and first["end"].get("signal", "SIGKILL") == "SIGKILL", "as far as the kernel tells"
    at, uncertain = first["end"]["at_seconds"], first["end"]["uncertain_seconds"]
    assert before - 0.5 <= at and at - uncertain <= over + 0.5, "when it was killed, within what it says it may be off"

    for rank in (ranks[0], ranks[2]):  # gloo raises an exception in them, as soon as their peer is gone
        assert rank.wait(300) == 1
    cluster.until_rows(lambda rows: all(row["state"] == "died" for row in rows))
    said = cluster.locate("--record", str(tmp_path / "held"))
    ways = ("killed by SIGKILL", "its process is gone: killed, or left by os._exit")  # as far as the kernel tells
    assert said.returncode == 1, said.stdout
    assert any(f"Rank 1 on n0 died first: {how}." in said.stdout.splitlines()[0] for how in ways), said.stdout
    recorded = [cluster.locate_trace(tmp_path / name) for name in ("recording", "held")]
    assert "Rank 1 on " in recorded[0].stdout.splitlines()[0], recorded[0].stdout
    assert any(f"died first: {how}." in recorded[0].stdout for how in ways)
    told_live = said.stdout.splitlines()  # also that the job has ended
    headline, *rest = recorded[1].stdout.splitlines()
    assert told_live[0].endswith(f", ended: {headline}")
    words = ("laggard recommend", "  Job ")  # the first names the folder, the other says which job was recorded
    told = {line for line in rest if not any(word in line for word in words)}
    assert told <= set(told_live)
    assert [each.returncode for each in recorded] == [1, 1]


def test_a_rank_that_leaves_with_an_exception_died_first(cluster: Cluster, tmp_path: Path) -> None:
    """The same from Python's side: the exception's type and the status are told, its text is not."""
    script = tmp_path / "fails.py"
    script.write_text(
        f"""
import itertools, os, runpy, sys, time
calls, sleep = itertools.count(), time.sleep
def fail_at_last(seconds):
    if next(calls) == 1000:
        raise FloatingPointError("secret")
    sleep(seconds)
if os.environ["RANK"] == "2":
    time.sleep = fail_at_last
runpy.run_path({str(ALL_REDUCE_LOOP)!r}, run_name="__main__")
"""
    )
    extra = {"LAGGARD_RECORD_DIR": str(tmp_path / "recording")}
    ranks = cluster.train(3, "1000000", script=script, extra=extra)
    cluster.until_rows(lambda rows: len(rows) == 3)
    assert ranks[2].wait(300) == 1
    first = dead(cluster.until(lambda location: dead(location)))
    assert first["ranks"] == [2] and (first["end"]["exit_code"], first["end"]["exception"]) == (1, "FloatingPointError")
    for rank in ranks:
        assert rank.wait(300) == 1
    for said in (cluster.locate(), cluster.locate_trace(tmp_path / "recording")):
        assert said.returncode == 1 and "Rank 2 on " in said.stdout.splitlines()[0], said.stdout
        assert "died first: exit status 1 after FloatingPointError." in said.stdout and "secret" not in said.stdout


def test_a_rank_that_leaves_with_status_0_while_others_go_on_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Its peers fail in gloo for it, some time later."""
    script = tmp_path / "leaves.py"
    script.write_text(
        f"""
import itertools, os, runpy, sys, time
calls, sleep = itertools.count(), time.sleep
def leave_at_last(seconds):
    if next(calls) == 1000:
        sys.exit(0)
    sleep(seconds)
if os.environ["RANK"] == "1":
    time.sleep = leave_at_last
runpy.run_path({str(ALL_REDUCE_LOOP)!r}, run_name="__main__")
"""
    )
    extra = {"LAGGARD_RECORD_DIR": str(tmp_path / "recording")}
    ranks = cluster.train(3, "1000000", script=script, extra=extra)
    cluster.until_rows(lambda rows: len(rows) == 3)
    assert [rank.wait(300) for rank in ranks] == [1, 0, 1]
    cluster.until_rows(lambda rows: [row["state"] for row in rows] == ["died", "finished", "died"])
    first = dead(cluster.until(lambda location: dead(location).get("ranks") == [1]))
    assert first["end"]["exit_code"] == 0 and first["victims"] == [0, 2] and first["since_step"] == 500
    for said in (cluster.locate(), cluster.locate_trace(tmp_path / "recording")):
        assert said.returncode == 1 and "left first: exit status 0." in said.stdout.splitlines()[0], said.stdout
        assert "Rank 1 on " in said.stdout.splitlines()[0] and "What to change" not in said.stdout
        assert "It left at step 500, while ranks 0 and 2 went on to all_reduce of dp:0-2, number 501" in said.stdout


JOIN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with model.join():
    for _ in range(20 + 10 * rank):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.all_reduce(torch.zeros(4), async_op=True)
dist.barrier(async_op=True)
dist.barrier()
"""


def test_a_job_that_ended_well_did_not_hang_in_what_nobody_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(JOIN)
    extra = {"LAGGARD_RECORD_DIR": str(tmp_path / "recording")}
    assert [rank.wait(300) for rank in cluster.train(2, script=script, extra=extra)] == [0, 0]
    lines = [line for file in (tmp_path / "recording").iterdir() for line in file.read_text().splitlines()]
    assert any('"end": null' in line for line in lines), "joined ranks launch collectives for which C++ waits"
    recorded = cluster.locate_trace(tmp_path / "recording").stdout
    assert "never finished" not in recorded and "died" not in recorded and "left" not in recorded, recorded


def dead(location: dict[str, Any]) -> dict[str, Any]:
    """The first culprit where that is dead, else an empty one."""
    return next((each for each in location["culprits"][:1] if each["kind"] == "dead"), {})


def test_a_slow_rank_is_named_while_the_job_runs(cluster: Cluster) -> None:
    words = ("--slow-rank", "2", "--slow-phase", "optimizer", "--slow-by", "0.3")
    cluster.train(3, "--steps", "100000", *words)
    location = cluster.until(lambda location: location["culprits"])
    assert [(each["ranks"], each["phase"]) for each in location["culprits"]] == [([2], "optimizer")]
    asked = cluster.locate()
    assert asked.returncode == 1 and asked.stdout.startswith("Rank 2 on n0 is slow in optimizer")
