"""The head of a recording: its folder, one for each run, and what the run was started with."""

import json
import os
import platform
import time
from pathlib import Path

import pytest

from laggard.deepspeed_config import told_settings
from laggard.kit.processes import own_identity, state_of
from laggard.rankfile.fact_names import ENVIRONMENT
from laggard.trainer_hooks.output.recording_folder import Identity, folder_of_run, rank_file_name
from laggard.trainer_hooks.output.run_environment import MAX_CHARACTERS, RunEnvironment, run_environment
from laggard.trainer_hooks.record.ending import Facts

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


SECRETS = {
    "NCCL_COMM_ID": "10.0.0.1:5",
    "NCCL_SOCKET_MAGIC": "0x5ec2e7",
    "NCCL_MY_OWN_TOKEN": "5ec2e7",
    "TORCH_MY_PASSWORD": "5ec2e7",
    "AWS_SECRET_ACCESS_KEY": "5ec2e7",
    "WANDB_API_KEY": "5ec2e7",
}


def test_versions_and_known_variables_are_told_and_no_others() -> None:
    known = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "TORCH_NCCL_BLOCKING_WAIT": "1"}
    told = dict(run_environment({**known, **SECRETS, "HOME": "/home/alice"}))
    assert told["python"] == platform.python_version() and told["kernel"] == platform.release()
    assert known.items() <= told.items()
    assert not SECRETS.keys() & told.keys() and "5ec2e7" not in json.dumps(told) and "alice" not in json.dumps(told)


def test_laggards_own_settings_of_nccls_log_are_not_told() -> None:
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/run/x.%p"}
    assert not log.keys() & dict(run_environment({**log, "LAGGARD_NCCL_LOG": "/run/x.%p"})).keys()
    assert log.items() <= dict(run_environment(log)).items(), "those of the user are"


def test_the_fact_is_bounded_and_set_at_a_few_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        monkeypatch.setitem(os.environ, f"NCCL_IBEXT_{number}", "x" * 500)
    facts = Facts()
    environment = RunEnvironment(facts)
    environment.beat()
    told = facts.get(ENVIRONMENT)
    assert told["python"] and len(json.dumps(told)) <= MAX_CHARACTERS + 2
    facts.set(ENVIRONMENT, None)
    for _ in range(9):
        environment.beat()
    assert facts.get(ENVIRONMENT) is None, "it reads files, and not each second"
    environment.beat()
    assert facts.get(ENVIRONMENT) == told


def test_deepspeeds_settings_are_told_and_what_is_not_known_by_its_hash_alone() -> None:
    tree = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e7},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "wandb": {"enabled": True, "api_key": "5ec2e7"},
    }
    told = told_settings(tree)
    assert {
        "stage": 2,
        "overlap_comm": True,
        "reduce_bucket_size": 50_000_000,
        "micro_batch": 4,
    }.items() <= told.items()
    assert "5ec2e7" not in json.dumps(told) and "wandb" not in json.dumps(told)
    other = told_settings({**tree, "optimizer": {"type": "AdamW", "params": {"lr": 2e-4}}})
    assert [name for name in told if told[name] != other[name]] == ["section optimizer"]
    assert len(other["section optimizer"]) == 8
