"""Jobs in words: by script, user and start where a launcher gave a number, by the name that somebody gave else."""

import pytest
from msgspec import structs

from laggard.collector.job_words import job_text, other_jobs, short_text
from laggard.collector.web.documents import JobLine
from laggard.model import JobKey, Verdict
from laggard.wire.job_words import recorded_text

UUID = "03323151-ff7e-41d6-958e-23a6d3593d8b"
STARTED = f", started 2025-11-25 07:04 UTC, `--job {UUID}`"
NOBODY = 4_000_000  # no user of this machine


def known(job_id: str, script: str = "train.py", started: float | None = 1_764_054_240.0, user: str = "ann") -> JobLine:
    key = f"{NOBODY}:{job_id}"
    return JobLine(key, job_id, NOBODY, True, 4, Verdict.OK, user=user, script=script, started_at=started)


@pytest.mark.parametrize(
    ("job_id", "line", "text", "short"),
    [
        (UUID, known(UUID), f"train.py of user ann{STARTED}", "train.py of user ann"),
        ("0" * 16, known("0" * 16, started=None), f"train.py of user ann, `--job {'0' * 16}`", "train.py of user ann"),
        (
            "job-d2a29fed3bf2",
            known("job-d2a29fed3bf2", started=None),
            "train.py of user ann, `--job job-d2a29fed3bf2`",
            "train.py of user ann",
        ),
        ("nightly", known("nightly"), "nightly of user ann", "nightly of user ann"),
        ("4711", known("4711"), "4711 of user ann", "4711 of user ann"),
        (UUID, known(UUID, script=""), f"{UUID} of user ann", f"{UUID} of user ann"),
        (UUID, None, f"{UUID} of user {NOBODY}", f"{UUID} of user {NOBODY}"),
        (UUID, known(UUID, script="a\n\x1b[2Jb.py"), f"a [2Jb.py of user ann{STARTED}", "a [2Jb.py of user ann"),
    ],
)
def test_a_job_by_what_people_know_it_by(job_id: str, line: JobLine | None, text: str, short: str) -> None:
    assert job_text(job_id, NOBODY, line) == text
    assert short_text(job_id, NOBODY, line) == short


def test_the_other_jobs_are_told_those_with_a_culprit_first() -> None:
    hung = structs.replace(known(UUID), verdict=Verdict.FAIL, sentence="Rank 2 on n1 is hung: the others wait for it.")
    ended = structs.replace(known("nightly"), running=False)
    jobs = {JobKey(NOBODY, line.job_id): line for line in (known("4711"), known("4712"), hung, ended)}
    assert other_jobs(jobs, JobKey(NOBODY, "4711")) == [
        "2 more jobs that run, choose with --job:",
        "--job 03323151-ff7: train.py of user ann: Rank 2 on n1 is hung: the others wait for it.",
        "--job 4712: 4712 of user ann:",
    ]
    assert other_jobs({JobKey(NOBODY, "4711"): known("4711")}, JobKey(NOBODY, "4711")) == []
    two = {JobKey(NOBODY, line.job_id): line for line in (known("4711"), ended)}
    assert other_jobs(two, JobKey(NOBODY, "4711")) == ["1 more job, ended: choose with --job"]


def test_a_recorded_job_by_what_the_recording_says() -> None:
    assert recorded_text(UUID, None, "train.py", 1_764_054_240.0) == "train.py, started 2025-11-25 07:04 UTC"
    assert recorded_text("4711", NOBODY, "train.py", None) == f"4711 of user {NOBODY}"
    assert recorded_text(None, None, None, None) is None
