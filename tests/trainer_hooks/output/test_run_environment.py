"""What a rank tells of its surroundings: versions and known variables, bounded, and no secret."""

from __future__ import annotations

import json
import os
import platform

import pytest

from laggard.deepspeed_config import told_settings
from laggard.rankfile.fact_names import ENVIRONMENT
from laggard.trainer_hooks.output.run_environment import MAX_CHARACTERS, RunEnvironment, run_environment
from laggard.trainer_hooks.record.ending import Facts

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
