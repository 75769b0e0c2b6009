"""Where in the code a slow rank is, and where a job stands still: real ranks, a real agent and a real collector."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.paths import TRAINING
from support.warm import Warm

pytestmark = pytest.mark.slow

SCRIPT = TRAINING / "slow_tokenizer.py"
TOKEN = "correct horse battery staple"


@pytest.fixture
def cluster(tmp_path: Path, warm_torch: Warm) -> Iterator[Cluster]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    config = tmp_path / "daemon.yaml"
    config.write_text(f"stacks_token_file: {token}\n")
    words = ("--config", str(config))
    started = Cluster(tmp_path, warm_torch, agent=words, collector=words)
    yield started
    started.end()


@pytest.fixture
def own_cluster(tmp_path: Path, warm_torch: Warm) -> Iterator[Cluster]:
    """Without a secret: agent and collector are of the user who trains."""
    started = Cluster(tmp_path, warm_torch)
    yield started
    started.end()


def stacks(cluster: Cluster, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LAGGARD_RANK_DIR": str(cluster.folder / "ranks"), **variables}
    command = [sys.executable, "-m", "laggard", "stacks", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)


def has_stack(location: dict[str, Any]) -> bool:
    return any(culprit.get("stack") for culprit in location["culprits"])


def test_a_slow_rank_is_named_with_the_function_that_is_slow(cluster: Cluster) -> None:
    cluster.train(2, script=SCRIPT)
    location = cluster.until(has_stack)
    (culprit,) = location["culprits"]
    assert culprit["ranks"] == [1] and "tokenize (slow_tokenizer.py:" in culprit["stack"]["text"], culprit
    held = cluster.get(f"{cluster.collector}/api/v1/stacks?job=job")
    assert [each["rank"] for each in held["ranks"]] == [0, 1] and not held["missing"]
    # By a collector, for who has the token.
    token = str(cluster.folder / "token")
    asked = stacks(cluster, "job", "--collector", cluster.collector, "--token-file", token, "--seconds", "2")
    # The ranks have just answered: they answer again ten seconds later.
    for _ in range(20):
        if asked.returncode == 0:
            break
        assert "its node was asked a moment ago" in asked.stdout, asked
        time.sleep(1)
        asked = stacks(cluster, "job", "--collector", cluster.collector, "--token-file", token, "--seconds", "2")
    assert asked.returncode == 0, asked
    lines = asked.stdout.splitlines()
    assert lines[0].startswith("Rank 1") and "of the samples in tokenize (slow_tokenizer.py:" in lines[0], lines
    wrong = cluster.folder / "wrong"
    wrong.write_text("wrong")
    wrong.chmod(0o600)
    refused = stacks(cluster, "job", "--collector", cluster.collector, "--token-file", str(wrong))
    assert refused.returncode == 64 and "another token than the collector's" in refused.stderr
    # On this machine, without any daemon.
    kept = cluster.folder / "kept"
    local = stacks(cluster, "job", "--ranks", "0-1,7", "--seconds", "2", "--save", str(kept), "--format", "json")
    document = json.loads(local.stdout)
    assert local.returncode == 2 and document["schema"] == "laggard.stacks/1", local
    assert [each["rank"] for each in document["ranks"]] == [0, 1]
    assert [(it["rank"], it["reason"]) for it in document["missing"]] == [(7, "it does not run on this machine")]
    assert sorted(os.listdir(kept)) == ["rank-0.stacks", "rank-1.stacks"]


def test_the_line_that_is_slow_comes_first_and_its_node_is_left_out_of_nothing(own_cluster: Cluster) -> None:
    own_cluster.train(2, script=SCRIPT)
    location = own_cluster.until(has_stack)
    (culprit,) = location["culprits"]
    assert culprit["advice"].startswith("look at tokenize (slow_tokenizer.py:"), culprit
    node = culprit["node"] or socket.gethostname()  # none, where a place of two ranks explains it as well
    assert node not in json.dumps(own_cluster.get(f"{own_cluster.collector}/api/v1/recommendation"))
    document = own_cluster.get(f"{own_cluster.collector}/api/v1/exclusions")
    assert document["exclusions"] == [], document


def test_a_job_that_stands_still_says_where_each_rank_is(cluster: Cluster) -> None:
    cluster.train(2, "--hang", "30", script=SCRIPT, extra={"LAGGARD_STACKS": "3"})
    location = cluster.until(lambda it: any(note["kind"] == "stacks" for note in it["notes"]))
    (note,) = (note for note in location["notes"] if note["kind"] == "stacks")
    assert "rank 1 in save_checkpoint (slow_tokenizer.py:" in note["text"], location
    shown = stacks(cluster, "job", "--collector", cluster.collector)
    assert shown.returncode == 0, shown
    lines = shown.stdout.splitlines()
    assert lines[1].startswith("Rank 1: save_checkpoint (slow_tokenizer.py:") and lines[2].startswith("Rank 0: "), lines
    local = stacks(cluster, "job", "--seconds", "2", "--samples", "20")
    assert local.returncode == 0 and "Rank 1: save_checkpoint (slow_tokenizer.py:" in local.stdout, local
