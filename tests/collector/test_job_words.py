"""Jobs in words: by script, user and start where a launcher gave a number, by the name that somebody gave else."""

from __future__ import annotations

import pytest

from laggard.collector.job_words import job_text, short_text
from laggard.collector.web.documents import JobLine
from laggard.model import Verdict

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
