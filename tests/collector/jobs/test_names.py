"""A job is found by its name, by its script, or by how its number begins."""

from __future__ import annotations

import pytest
from support.timings import job as timings_of

from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.locate.verdict import locate
from laggard.model import JobKey

ONE, OTHER = "e75a69af-ff7e-41d6-958e-23a6d3593d8b", "e75a6000-ff7e-41d6-958e-23a6d3593d8b"


@pytest.fixture(scope="module")
def cluster() -> ClusterSnapshot:
    timings = timings_of(4)
    location = locate(timings)

    def one(job_id: str, script: str, owner: int = 1000) -> JobSnapshot:
        return JobSnapshot(JobKey(owner, job_id), True, timings, location, script=script)

    jobs = (one(ONE, "train.py"), one(OTHER, "eval.py"), one("4711", "named.py"), one("nightly-2", "named.py"))
    return ClusterSnapshot(nodes=(), jobs=(*jobs, one("job-d2a29fed3bf2", "train.py", owner=1001)))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (ONE, ONE),
        ("e75a69", ONE),
        ("1000:e75a69af", ONE),
        ("eval.py", OTHER),
        ("1001:train.py", "job-d2a29fed3bf2"),
        ("job-d2a29f", "job-d2a29fed3bf2"),
        ("4711", "4711"),
        ("e75a6", None),  # too short, as a commit's
        ("e75a60ff", None),
        ("named.py", None),  # somebody gave these jobs names
        ("471", None),
        ("nightly", None),
        ("1001:e75a69af", None),  # another user's
    ],
)
def test_a_job_by_what_people_write(cluster: ClusterSnapshot, asked: str, found: str | None) -> None:
    job = cluster.job(asked)
    assert (job.key.job_id if job else None) == found and not cluster.ambiguity(asked)


def test_what_several_jobs_are_called_is_refused_with_the_choices(cluster: ClusterSnapshot) -> None:
    assert cluster.job("train.py") is None
    choices = f"1000:{ONE}, 1001:job-d2a29fed3bf2"
    assert cluster.ambiguity("train.py") == f"2 jobs are called so, train.py; ask for one of them: {choices}"


def test_where_there_is_no_such_job_the_scripts_are_told(cluster: ClusterSnapshot) -> None:
    (note,) = cluster.location("x").notes
    assert note.text.startswith(f"no job x is known; known: 1000:{ONE} (train.py), 1000:{OTHER} (eval.py), 1000:4711,")
