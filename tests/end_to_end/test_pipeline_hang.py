"""A hang in a pipeline, whose stages send and receive: real ranks on gloo, their rank files, an agent, a collector."""

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


def test_a_stage_that_is_stopped_is_named_and_nobody_else(cluster: Cluster) -> None:
    stages = cluster.train(STAGES, "1000000", script=PIPELINE)

    def train(rows: list[dict[str, Any]]) -> bool:
        return len(rows) == STAGES and all(row["steps"] > 20 and row["beat"] and row["beat"]["lanes"] for row in rows)

    rows = cluster.until_rows(train)
    peers = [{(lane["op"], lane["peer"]) for lane in row["beat"]["lanes"]} for row in rows]
    assert peers[0] == {("send", 1), ("recv", 1)}
    assert peers[1] == {("send", 0), ("recv", 0), ("send", 2), ("recv", 2)}
    cluster.until(lambda location: (location["window"]["last_step"] or 0) > 20)  # it knows the usual step

    stages[2].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    while not (asked := cluster.locate()).stdout.startswith("Rank 2 on n0 is hung"):
        accused = re.findall(r"[Rr]ank (\d+) on n0 (?:has not arrived|is hung)", asked.stdout)
        assert set(accused) <= {"2"}, asked.stdout
        assert time.monotonic() < began + HUNG_SILENT_SECONDS, asked.stdout
    assert asked.returncode == 1, asked.stdout
    assert "Its process is stopped" in asked.stdout and "from rank 2, number" in asked.stdout

    stages[2].send_signal(signal.SIGCONT)
    before = max(row["steps"] for row in cluster.ranks())
    cluster.until_rows(lambda rows: all(row["steps"] > before and not row["stopped"] for row in rows))
    cluster.until(lambda location: not location["culprits"])
