"""Faults in a running job, seen by the whole path: real ranks, an agent, a collector."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
TRAIN = Path(__file__).resolve().parents[1] / "src" / "laggard" / "demo" / "train.py"


class Cluster:
    """A collector, one agent, and the ranks of a job on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        agent = self.daemon("agent", "--node", "n0", "--rank-dir", str(folder / "ranks"))
        self.collector = self.daemon("collector", "--interval", "0.5", "--target", agent.removeprefix("http://"))

    def start(self, *words: str, extra: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "laggard", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(extra or {})},
        )
        self.processes.append(process)
        return process

    def daemon(self, name: str, *words: str) -> str:
        process = self.start(name, "--web.listen-address", "127.0.0.1:0", *words)
        assert process.stderr is not None
        found = re.search(r"listening on (http\S+)", process.stderr.readline())
        assert found, process.stderr.read()
        return found[1]

    def train(self, ranks: int, *words: str) -> list[subprocess.Popen[str]]:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        common = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "LAGGARD_RANK_DIR": str(self.folder / "ranks"),
            "LAGGARD_JOB_ID": "job",
        }
        return [
            self.start("run", str(TRAIN), *words, extra={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]

    def location(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.collector}/api/v1/location", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def until(self, condition: Any, seconds: float = 60.0) -> dict[str, Any]:
        """The first location for which `condition` holds."""
        deadline = time.monotonic() + seconds
        while True:
            location = self.location()
            if condition(location):
                return location
            assert time.monotonic() < deadline, location
            time.sleep(0.2)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


def test_a_rank_that_is_killed_in_mid_step_is_named_and_its_victims_are_not(cluster: Cluster) -> None:
    ranks = cluster.train(3, "--steps", "100000")
    cluster.until(lambda location: (location["window"]["last_step"] or 0) > 15)
    ranks[1].send_signal(signal.SIGKILL)
    location = cluster.until(lambda location: any(each["kind"] == "hung" for each in location["culprits"]))
    assert [each["ranks"] for each in location["culprits"] if each["kind"] == "hung"] == [[1]]
    assert any(note["kind"] == "rank_died" and note["ranks"] == [1] for note in location["notes"])
    assert location["verdict"] == "fail"


def test_a_slow_rank_is_named_while_the_job_runs(cluster: Cluster) -> None:
    words = ("--slow-rank", "2", "--slow-phase", "optimizer", "--slow-by", "0.1")
    cluster.train(3, "--steps", "100000", *words)
    location = cluster.until(lambda location: location["culprits"])
    assert [(each["ranks"], each["phase"]) for each in location["culprits"]] == [([2], "optimizer")]
    asked = subprocess.run(
        [sys.executable, "-m", "laggard", "locate", "--collector", cluster.collector], capture_output=True, text=True
    )
    assert asked.returncode == 1 and asked.stdout.startswith("Rank 2 on n0 is slow in optimizer")
