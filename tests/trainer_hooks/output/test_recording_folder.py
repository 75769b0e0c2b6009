"""Into which folder a run records, where the one that was asked for holds another run's recording."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from laggard.kit.processes import own_identity, state_of
from laggard.trainer_hooks.output.recording_folder import Identity, folder_of_run, rank_file_name

LONG_AGO = 86_400.0
GONE = {**own_identity(), "start_ticks": 1}


def holds(folder: Path, job: str = "j", rank: int = 0, attempt: int = 0, ago: float = LONG_AGO, **head: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / rank_file_name(rank, attempt)
    path.write_text(json.dumps({"laggard_recording": 1, "job_id": job, **head}) + "\n")
    os.utime(path, (time.time() - ago,) * 2)


def chosen(folder: Path, rank: int = 0, attempt: int = 0, job: str = "j") -> str:
    return os.path.relpath(folder_of_run(str(folder), Identity(job, rank, rank, 4, "n", None, attempt)), folder)


def test_a_folder_without_a_recording_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert chosen(tmp_path) == "." and chosen(tmp_path / "new") == "."


@pytest.mark.parametrize("job", ["other", "j"])  # deepspeed's runs of one machine have one name
@pytest.mark.parametrize("rank", [0, 3])  # of the old run there is no rank 3
def test_a_second_run_and_a_third_get_folders_of_their_own(tmp_path: Path, job: str, rank: int) -> None:
    holds(tmp_path, job, process=GONE)
    assert chosen(tmp_path, rank) == "run-2"
    holds(tmp_path / "run-2", job)
    assert chosen(tmp_path, rank) == "run-3"


def test_the_ranks_of_one_run_share_a_folder(tmp_path: Path) -> None:
    holds(tmp_path, "other")
    holds(tmp_path / "run-2", rank=1, ago=0.0)
    holds(tmp_path / "run-2", rank=2, ago=LONG_AGO, process=own_identity())  # it runs, and waits for this one
    assert chosen(tmp_path, rank=0) == "run-2"


def test_a_file_that_another_rank_has_just_made_and_not_begun_is_of_this_run(tmp_path: Path) -> None:
    """Ranks start at once, and a busy machine may stop one between the two steps."""
    path = tmp_path / rank_file_name(1, 0)
    path.touch()
    assert chosen(tmp_path, rank=0) == "."
    os.utime(path, (time.time() - LONG_AGO,) * 2)
    assert chosen(tmp_path, rank=0) == "run-2", "of a run whose disk was full"


def test_an_attempt_after_a_restart_records_where_the_first_did(tmp_path: Path) -> None:
    holds(tmp_path, "other")
    holds(tmp_path / "run-2")
    assert chosen(tmp_path, attempt=1) == "run-2"
    holds(tmp_path / "run-2", attempt=1)
    assert chosen(tmp_path, attempt=1) == "run-3", "another run of that name, which was restarted, too"
    assert chosen(tmp_path, rank=1, attempt=0) == "run-3", "the job was past that attempt"


def test_a_second_process_under_one_rank_number_records_nowhere(tmp_path: Path) -> None:
    holds(tmp_path, process=own_identity())
    with pytest.raises(FileExistsError) as refused:
        chosen(tmp_path)
    assert refused.value.strerror == "another process of this job records there as rank 0"


@pytest.mark.parametrize("head", ["", "[]", "{", '{"job_id": "j"', "\x00" * 5000])
def test_a_file_that_is_no_recording_is_not_written_to(tmp_path: Path, head: str) -> None:
    (tmp_path / "rank-0.jsonl").write_text(head)
    assert chosen(tmp_path) == "run-2"


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    own = own_identity()
    assert state_of(own) == "runs" and state_of(GONE) == "gone"
    assert state_of({**own, "pid": 1 << 22}) == "gone", "no process has this number"
    for other in (None, {}, {**own, "boot_id": "x"}, {**own, "pid_namespace": "x"}, {**own, "pid": "1"}, {"pid": -1}):
        assert state_of(other) is None, f"{other}: another machine's"
