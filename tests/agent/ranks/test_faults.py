"""Restarts of jobs and agents, two jobs on one node, two jobs under one name, killed ranks."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.steps import numbers

from laggard.agent.ranks.reader import DUPLICATE_JOB, RankFiles
from laggard.collector.scrape.validation import validate_ranks_answer
from laggard.rankfile.layout import ENDED_SECONDS

Start = Callable[..., Any]


def states(rows: list[dict[str, Any]]) -> list[tuple[str, int, int, str]]:
    return [(row["job_id"], row["rank"], row["attempt"], row["state"]) for row in rows]


@pytest.mark.spine
@pytest.mark.slow
def test_a_restarted_agent_reports_what_the_one_before_reported(start_agent: Start, start_rank: Start) -> None:
    ranks = [start_rank(rank=rank, local_rank=rank) for rank in range(2)]
    for rank in ranks:
        rank.do("step", "step", "block")
    before = start_agent()
    reported = before.request("/api/v1/ranks?since=0").json()["ranks"]
    before.process.kill()
    ranks[0].do("step")  # while no agent runs
    body = start_agent().request("/api/v1/ranks?since=0").body
    after = json.loads(body)["ranks"]
    assert states(after) == states(reported)
    assert [numbers(table) for table in validate_ranks_answer(body).steps] == [[0, 1, 2], [0, 1]]
    assert [row["in_flight"]["seq"] for row in after] == [7, 7]


def test_what_a_terminated_training_leaves_goes_once_nobody_is_told_of_it(rank_dir: Path, start_rank: Start) -> None:
    own = rank_dir / str(os.geteuid())
    own.mkdir()
    ended, lives = (start_rank(rank=rank, local_rank=rank, directory=own) for rank in range(2))
    stacks = ended.path.with_suffix(".stacks")
    stacks.touch()
    ended.process.terminate()
    ended.process.wait()
    files = RankFiles(str(rank_dir), "n0")
    assert [row.state for row in files.read().ranks] == ["died", "running"] and ended.path.exists()
    for rank in (ended, lives):
        last_beat = time.time() - ENDED_SECONDS - 1
        os.utime(rank.path, (last_beat, last_beat))
    files.read()
    assert not ended.path.exists() and not stacks.exists() and lives.path.exists()


def test_two_jobs_on_a_node_stay_apart(rank_dir: Path, start_rank: Start) -> None:
    for job, attempt in (("a", 0), ("b", 1)):
        for rank in range(2):
            start_rank(job_id=job, rank=rank, attempt=attempt).do("step")
    document = RankFiles(str(rank_dir), "n0").read()
    assert [(row.job_id, row.rank, row.attempt) for row in document.ranks] == [
        ("a", 0, 0), ("a", 1, 0), ("b", 0, 1), ("b", 1, 1),
    ]  # fmt: skip
    assert document.ignored == ()


def test_two_jobs_under_one_name_are_reported_as_such(rank_dir: Path, start_rank: Start) -> None:
    files = RankFiles(str(rank_dir), "n0")
    first, second = start_rank(), start_rank()
    first.do("step")
    second.do("step", "step")
    document = files.read()
    assert [row.steps for row in document.ranks] == [2]  # the later one
    assert [(it.reason, it.count) for it in document.ignored] == [(DUPLICATE_JOB, 1)]
    assert document.ignored[0].example == first.path.name
    first.kill()
    assert files.read().ignored == ()
    second.kill()
    assert [row.steps for row in files.read().ranks] == [2]


def test_an_elastic_restart_with_other_ranks(rank_dir: Path, start_rank: Start) -> None:
    files = RankFiles(str(rank_dir), "n0")
    old = [start_rank(rank=rank, local_rank=rank, world_size=4) for rank in (2, 3)]
    for rank in old:
        rank.do("step")
    new = [start_rank(rank=rank, local_rank=rank, world_size=2, attempt=1) for rank in (0, 1)]
    new[0].do("step")
    old[0].kill()  # the other is still being torn down
    document = files.read()
    found = [(row.rank, row.attempt, row.world_size, row.state) for row in document.ranks]
    assert found == [(0, 1, 2, "running"), (1, 1, 2, "running"), (2, 0, 4, "died"), (3, 0, 4, "running")]
    assert document.ignored == ()
