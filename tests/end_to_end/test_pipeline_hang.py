"""A hang in a pipeline, whose stages send and receive: real ranks on gloo, their rank files, an agent, a collector."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.paths import TRAINING
from support.warm import Warm

from laggard.locate.hang.hangs import HUNG_SILENT_SECONDS

pytestmark = pytest.mark.slow
PIPELINE = TRAINING / "pipeline.py"
STAGES = 4


@pytest.fixture
def cluster(tmp_path: Path, warm_torch: Warm) -> Iterator[Cluster]:
    made = Cluster(tmp_path, warm_torch, interval="5")  # as deployed: `laggard locate` asks for a fresh round
    yield made
    made.end()


@pytest.fixture
def stages(cluster: Cluster) -> list[Any]:
    """The processes of a pipeline that is training, and whose usual step the collector knows."""
    return until_it_trains(cluster, cluster.train(STAGES, "1000000", str(cluster.folder), script=PIPELINE))


def until_it_trains(cluster: Cluster, ranks: list[Any]) -> list[Any]:
    def train(rows: list[dict[str, Any]]) -> bool:
        return len(rows) == STAGES and all(row["steps"] > 20 and row["beat"] and row["beat"]["lanes"] for row in rows)

    cluster.until_rows(train)
    cluster.until(lambda location: (location["window"]["last_step"] or 0) > 20)
    return ranks


def locate_until(cluster: Cluster, start: str, seconds: float, stuck: int | None = None) -> tuple[Any, float]:
    """The output of `laggard locate` once it begins with `start`, and the seconds until then. No rank but `stuck` is
    accused before; in a deadlock none is."""
    began = time.monotonic()
    while not (asked := cluster.locate()).stdout.startswith(start):
        accused = re.findall(r"[Rr]ank (\d+) on n0 (?:has not arrived|is hung)", asked.stdout)
        assert set(accused) <= {str(stuck)}, asked.stdout
        assert time.monotonic() < began + seconds, asked.stdout
    return asked, time.monotonic() - began


def test_rows_name_the_peer(cluster: Cluster, stages: list[Any]) -> None:
    rows = cluster.ranks()
    peers = [{(lane["op"], lane["peer"]) for lane in row["beat"]["lanes"]} for row in rows]
    assert peers[0] == {("send", 1), ("recv", 1)}
    assert peers[1] == {("send", 0), ("recv", 0), ("send", 2), ("recv", 2)}


def test_a_stage_that_is_stopped_is_named_and_nobody_else(cluster: Cluster, stages: list[Any]) -> None:
    stages[2].send_signal(signal.SIGSTOP)
    asked, seconds = locate_until(cluster, "Rank 2 on n0 is hung", HUNG_SILENT_SECONDS, 2)
    print(f"SIGSTOP to what `laggard locate` prints: {seconds:.2f} s")
    assert asked.returncode == 1, asked.stdout
    assert "Its process is stopped" in asked.stdout and "from rank 2, number" in asked.stdout

    stages[2].send_signal(signal.SIGCONT)
    before = max(row["steps"] for row in cluster.ranks())
    cluster.until_rows(lambda rows: all(row["steps"] > before and not row["stopped"] for row in rows))
    cluster.until(lambda location: not location["culprits"])


@pytest.mark.parametrize("stuck", [1, 2])
def test_a_stage_that_sleeps_is_named_and_nobody_else(cluster: Cluster, stages: list[Any], stuck: int) -> None:
    (cluster.folder / f"sleep-{stuck}").touch()
    start = f"Cannot tell: rank {stuck} on n0 has not arrived at"
    asked, seconds = locate_until(cluster, start, HUNG_SILENT_SECONDS, stuck)
    print(f"Sleep to what `laggard locate` prints: {seconds:.2f} s")
    assert asked.returncode == 2, asked.stdout
    for _ in range(3):
        notes = json.loads(cluster.locate("--format", "json").stdout)["notes"]
        late = [note for note in notes if note["kind"] == "not_arrived"]
        assert [note["ranks"] for note in late] == [[stuck]], late
    neighbour = f"at send of pp:{stuck}-{stuck + 1} to rank {stuck + 1}, number"
    assert neighbour in late[0]["text"] or f"to rank {stuck - 1}, number" in late[0]["text"], late
    waiting = {rank for note in notes if note["kind"] == "waiting" for rank in note["ranks"]}
    assert waiting == set(range(STAGES)) - {stuck}


def test_stages_that_wait_for_one_another_are_a_deadlock(cluster: Cluster) -> None:
    """After its last step each stage receives from the next one, and none sends."""
    until_it_trains(cluster, cluster.train(STAGES, "300", str(cluster.folder), "deadlock", script=PIPELINE))
    asked, _ = locate_until(cluster, "Something is wrong: ranks 0-3 wait for one another, a deadlock", 300.0)
    assert asked.returncode == 1 and "from rank 0, number 1, for" in asked.stdout, asked.stdout
