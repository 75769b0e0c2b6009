"""Faults in a running job with real ranks, an agent and a collector."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


def test_a_rank_that_is_killed_during_a_step_is_named_and_its_victims_are_not(cluster: Cluster) -> None:
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
    asked = cluster.locate()
    assert asked.returncode == 1 and asked.stdout.startswith("Rank 2 on n0 is slow in optimizer")
