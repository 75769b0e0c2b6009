"""`laggard tune zero`, `deepspeed`, `all` and `ab`: trainings, measured by the recordings that they leave."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS
from support.tuned_training import seconds_of

from laggard.cli import main
from laggard.tune.plan import normal
from laggard.tune.training import Training, switch_space

PYTHON = f"{shlex.quote(sys.executable)} -S -E"
TRAINING = f"{PYTHON} {shlex.quote(str(TESTS / 'support' / 'tuned_training.py'))} {{config}} {{recording}}"
NCCL = f"{PYTHON} {shlex.quote(str(TESTS / 'support' / 'nccl_tests.py'))} {{test}} -b {{bytes}} -e {{bytes}}"
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 8,
    "zero_optimization": {"stage": 1},
}


def words(tmp_path: Path, what: str, *more: str, config: dict[str, Any] = CONFIG) -> list[str]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    campaign = ["--study", str(tmp_path / f"{what}.db"), "--trials", "50", "--command", TRAINING]
    return ["tune", what, *campaign, "--config", str(path), "--gpus", "2", *more]


def ran(capsys: pytest.CaptureFixture[str], *own: str) -> list[dict[str, Any]]:
    status = main([*own, "--format", "json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return [json.loads(line) for line in captured.out.splitlines()]


@pytest.mark.slow
def test_stage_and_micro_batch_at_one_global_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "files"
    (found,) = ran(capsys, *words(tmp_path, "zero", "--write", str(files)))
    items = {each["key"]: each["recommended"] for each in found["recommendation"]["items"]}
    assert items == {
        "zero_optimization.stage": 2,
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 1,
    }, found["finalists"]
    failures = [each for each in found["trials"] if each["status"] == "out of memory"]
    assert 1 <= len(failures) <= 3, f"memory was not learnt from: {failures}"
    assert not [each for each in found["trials"] if each["status"] == "crashed"], "a global batch was another"
    written = json.loads((files / "ds_config.json").read_text())
    assert written["train_micro_batch_size_per_gpu"] * written["gradient_accumulation_steps"] * 2 == 32
    truth = [{**CONFIG}, written]
    ratio = seconds_of(truth[0], "") / seconds_of(truth[1], "")
    gain = found["recommendation"]["items"][0]["gain"]
    assert gain["low"] * 0.98 < ratio < gain["high"] * 1.02, f"{gain}, and {ratio:.3f} in truth"


@pytest.mark.slow
def test_switches_and_a_loss_that_diverges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = words(tmp_path, "deepspeed")
    (found,) = ran(capsys, *own)
    items = {each["key"].rpartition(".")[2]: each["recommended"] for each in found["recommendation"]["items"]}
    assert items["overlap_comm"] is True and items["reduce_bucket_size"] == 50_000_000, found["finalists"]
    assert items["LAGGARD_REDUCE_SCATTER"] == "1", "the variable did not reach the training, or was not tried"
    assert found["rejected"] == {"contiguous_gradients": "False"}, "the diverging switch was not rejected"
    (again,) = ran(capsys, "tune", "ab", "--study", str(tmp_path / "deepspeed.db"), "--rounds", "6")
    assert again["word"] == "faster" and again["pairs"] == 6, again


@pytest.mark.slow
def test_three_steps_each_from_the_last_ones_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["NCCL_MIN_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_ALGO"]
    out = [word for name in few for word in ("--leave-out", name)]
    nccl, zero, deepspeed = ran(capsys, *words(tmp_path, "all", "--nccl-command", NCCL, *out))
    (blocks,) = (each for each in nccl["recommendation"]["items"] if each["key"] == "NCCL_MAX_CTAS")
    assert blocks["recommended"] == "32", nccl["finalists"]
    at_first = next(each["seconds"] for each in zero["trials"] if not each["changes"])
    assert at_first == pytest.approx(seconds_of(CONFIG, "32"), rel=0.03), "the variables were not passed on"
    at_last = next(each["seconds"] for each in deepspeed["trials"] if not each["changes"])
    best = {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 2}}
    assert at_last == pytest.approx(seconds_of(best, "32"), rel=0.03), "the best stage was not passed on"


@pytest.mark.parametrize(("parameters", "least"), [(3e5, 5_000_000), (8e9, 5_000_000), (None, 5_000_000)])
def test_a_small_model_gets_a_bucket_of_its_size(parameters: float | None, least: int) -> None:
    buckets = {each.name: each for each in switch_space(Training(CONFIG, 2, parameters)).parameters}
    choices = buckets["reduce_bucket_size"].choices
    assert choices[0] == least and 500_000_000 in choices, f"tried: {choices}"
    assert len(choices) == (2 if parameters == 3e5 else 6), f"larger buckets than the model are all one: {choices}"


@pytest.mark.parametrize(
    ("zero", "tried"),
    [({"stage": 1}, True), ({"stage": 2}, True), ({"stage": 3}, False), ({"stage": 1, "reduce_scatter": False}, False)],
)
def test_the_true_reduce_scatter_is_tried_where_the_hooks_do_it(zero: dict[str, Any], tried: bool) -> None:
    space = switch_space(Training({**CONFIG, "zero_optimization": zero}, 2))
    assert ("LAGGARD_REDUCE_SCATTER" in space.default) == tried
    if tried:
        without = normal(space, {"LAGGARD_REDUCE_SCATTER": "1", "contiguous_gradients": False})
        assert without["LAGGARD_REDUCE_SCATTER"] is None, "it does nothing without contiguous gradients"


def test_a_training_that_never_runs_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{PYTHON} -c raise(SystemExit('no-module-named-x')) {{config}} {{recording}}"
    assert main(words(tmp_path, "zero", "--command", command.replace("raise", "'raise").replace(")) ", "))' "))) == 2
    captured = capsys.readouterr()
    assert "the default itself does not run" in captured.out and captured.err.count("crashed") == 1, captured


@pytest.mark.slow
def test_where_a_later_step_does_not_run_the_earlier_ones_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours of measuring NCCL are not lost because the training's command is wrong."""
    own = words(tmp_path, "all", "--nccl-command", NCCL, "--trials", "24", "--rounds", "4")
    own[own.index(TRAINING)] = "false {config} {recording}"
    assert main(own) == 2
    said = capsys.readouterr().out
    assert said.count("The gain of each step: ") == 1 and "zero: no gain." in said, said
