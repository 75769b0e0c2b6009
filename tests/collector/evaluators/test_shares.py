"""Which evaluator judges a job: by the hash that Prometheus itself shards with."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.scraping import prometheus
from support.waiting import wait_for

from laggard.collector.shared_verdicts import LEASE_SECONDS, Members, hashmod
from laggard.model import JobKey

KEYS = [JobKey(1000 + number % 3, f"train-{number}") for number in range(300)]
NAMES = JobKey(0, 'ü; \\ " {}'), JobKey(4294967294, "x" * 128)


@pytest.mark.slow  # a Prometheus
def test_the_hash_is_that_of_prometheus(tmp_path: Path) -> None:
    if not shutil.which("prometheus"):
        pytest.skip("NO PROMETHEUS: hashmod is NOT compared with its own; apt-get install prometheus")
    keys = [*KEYS[:20], *NAMES]
    targets = [
        {"targets": [f"127.0.0.1:{number + 1}"], "labels": {"user": str(key.owner), "job_id": key.job_id}}
        for number, key in enumerate(keys)
    ]
    relabel = {"source_labels": ["user", "job_id"], "modulus": 97, "target_label": "shard", "action": "hashmod"}
    job = {"job_name": "laggard", "scrape_interval": "1h", "static_configs": targets, "relabel_configs": [relabel]}
    with prometheus(tmp_path, [job]) as asked:
        wait_for(lambda: len(asked("targets")["activeTargets"]) == len(keys), lambda: asked("targets"))
        found = asked("targets")["activeTargets"]
    shards = {it["labels"]["instance"]: int(it["labels"]["shard"]) for it in found}
    assert shards == {f"127.0.0.1:{number + 1}": hashmod(key, 97) for number, key in enumerate(keys)}


def test_each_job_has_one_judge_and_each_evaluator_its_share() -> None:
    names = ("a", "b", "c")
    judges = Counter(Members(names, "a").judge_of(key) for key in KEYS)
    assert judges.keys() == set(names) and min(judges.values()) > 60
    for key in KEYS:
        assert [Members(names, me).is_mine(key) for me in names].count(True) == 1


def test_nobody_judges_where_there_are_no_members_or_one_has_no_name_yet() -> None:
    assert Members().judge_of(KEYS[0]) == "" and not Members().is_mine(KEYS[0])
    assert not any(Members(("a", "b")).is_mine(key) for key in KEYS)


def test_an_evaluator_that_is_gone_loses_its_jobs() -> None:
    before = Members(("a", "b", "c"), "a")
    assert before.after(["a", "c"], "a", LEASE_SECONDS) == Members(("a", "c"), "a")
    assert before.after(["d", "c", "a"], "a", LEASE_SECONDS) == Members(("a", "c", "d"), "a")


def test_after_the_database_was_away_jobs_do_not_move_to_and_fro() -> None:
    """All evaluators come back at once, and the first finds itself alone."""
    before = Members(("a", "b", "c"), "a")
    assert before.after(["a"], "a", 0.1) == before
    assert before.after(["a", "d"], "a", 0.1) == Members(("a", "b", "c", "d"), "a")
    assert Members().after(["a"], "a", 0.1) == Members(("a",), "a"), "one that has just begun knows of no others"


def test_where_none_can_judge_nothing_moves() -> None:
    before = Members(("a", "b"), "a")
    assert before.after([], "a", 100.0) == before


def test_one_that_comes_back_under_another_name_counts_once() -> None:
    """The server still has the connection that holds its name, where the network was cut."""
    before = Members(("a", "b", "c"), "a")
    assert before.after(["a#1", "b", "c"], "a#1", 0.1) == Members(("a#1", "b", "c"), "a#1")
