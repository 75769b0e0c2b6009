"""Computed of measured runs: a model of a step, a surface and its outliers, and two logs of NCCL compared."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.cli import main
from laggard.nccl.comparison import find_choices
from laggard.recommend.zero import (
    MemoryPlan,
    Network,
    Observation,
    StateBytes,
    activation_bounds,
    collective_seconds,
    ring_seconds,
    stage_collectives,
    stage_seconds,
    state_bytes,
)
from laggard.reports.outliers import find_outliers
from laggard.reports.runs import Configuration, Run
from laggard.reports.step_model import fit_step_model, predict, solve_nonnegative

SAMPLE, MICRO_STEP = 3e-3, 8e-3
EXTRA = {1: 0.0, 2: 20e-3}
ONCE = {1: 170e-3, 2: 10e-3}


def made(sizes: list[tuple[int, int]], noise: float = 0.0, seed: int = 0) -> list[Configuration]:
    random = np.random.default_rng(seed)
    found = []
    for stage in (1, 2):
        for micro_batch, grad_accum in sizes:
            seconds = SAMPLE * micro_batch * grad_accum + (MICRO_STEP + EXTRA[stage]) * grad_accum + ONCE[stage]
            speed = micro_batch * grad_accum / seconds * np.exp(random.normal(0, noise))
            found.append(Configuration("p", stage, micro_batch, grad_accum, (), float(speed), ()))
    return found


def test_runs_of_several_global_batches_tell_all_parts() -> None:
    model = fit_step_model(made([(16, 4), (32, 4), (64, 4), (64, 8), (16, 16)]))
    assert model is not None
    found = {each.name: each for each in model.parameters}
    assert found["a sample"].seconds == pytest.approx(SAMPLE)
    assert found["a micro-step"].seconds == pytest.approx(MICRO_STEP)
    assert found["stage 2 a micro-step"].seconds == pytest.approx(EXTRA[2])
    assert found["stage 1 a step"].seconds == pytest.approx(ONCE[1])
    assert all(each.identifiable for each in model.parameters)


def test_at_one_global_batch_computing_and_what_is_done_once_are_not_told_apart() -> None:
    model = fit_step_model(made([(16, 32), (32, 16), (64, 8), (128, 4)], 0.005))
    assert model is not None
    found = {each.name: each for each in model.parameters}
    assert [name for name, each in found.items() if not each.identifiable] == [
        "a sample",
        "stage 1 a step",
        "stage 2 a step",
    ]
    extra = found["stage 2 a micro-step"]
    assert extra.low is not None and extra.high is not None and extra.low < EXTRA[2] < extra.high


def test_intervals_hold_what_they_promise() -> None:
    held = 0
    for seed in range(8):
        model = fit_step_model(made([(16, 4), (32, 4), (64, 4), (64, 8), (16, 16)], 0.03, seed))
        assert model is not None
        found = predict(model, 2, 128, 4)
        assert found is not None and found.low is not None and found.high is not None
        right = 512 / (SAMPLE * 512 + (MICRO_STEP + EXTRA[2]) * 4 + ONCE[2])
        held += found.low <= right <= found.high
    assert held >= 5


def test_with_as_many_parts_as_runs_there_is_no_interval() -> None:
    model = fit_step_model(made([(16, 4)]))
    assert model is not None and model.noise is None
    assert all(each.low is None for each in model.parameters)
    assert predict(model, 3, 16, 4) is None
    assert fit_step_model([Configuration("p", 1, 8, 8, (), None, ())]) is None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000))
def test_nonnegative_least_squares_is_at_its_optimum(seed: int) -> None:
    """Karush, Kuhn and Tucker: where a part is positive the gradient is 0, else it points below 0."""
    random = np.random.default_rng(seed)
    design, target = random.normal(size=(9, 4)), random.normal(size=9)
    found = solve_nonnegative(design, target)
    gradient = design.T @ (target - design @ found)
    assert (found >= 0).all() and (gradient < 1e-6).all() and np.abs(gradient[found > 0]).max(initial=0) < 1e-6


def test_volumes_of_the_stages() -> None:
    assert [(each.op, each.size_bytes, each.times) for each in stage_collectives(2, 10.0, 4, 4)] == [
        ("all_reduce", 40.0, 4),
        ("all_gather", 20.0, 1),
    ]
    network = Network(gpus=16, bus_bandwidth=184e9, latency=0.0, nodes=2)
    assert ring_seconds("all_gather", 0.44e9 * 2, network) == pytest.approx(4.5e-3, rel=0.05)  # measured: 4.41 to 4.51
    assert ring_seconds("all_reduce", 0.44e9 * 4, network) == pytest.approx(17.9e-3, rel=0.01)
    assert stage_seconds(3, 1e9, 4, network) > stage_seconds(2, 1e9, 4, network) > stage_seconds(1, 1e9, 4, network)
    assert stage_seconds(3, 1e9, 4, Network(1, 1e9)) == 0.0


def test_small_messages_go_by_the_tree_on_many_nodes() -> None:
    network = Network(gpus=1024, bus_bandwidth=200e9, nodes=128)
    assert collective_seconds("all_reduce", 1024, network) < ring_seconds("all_reduce", 1024, network) / 10
    assert collective_seconds("all_reduce", 8e9, network) == pytest.approx(
        ring_seconds("all_reduce", 8e9, network), rel=0.2
    )


def test_memory_of_the_stages() -> None:
    plan = MemoryPlan(parameters=1e9, gpus=8, gpu_bytes=80e9)
    assert [state_bytes(stage, plan) for stage in range(4)] == pytest.approx([16e9, 5.5e9, 3.75e9, 2e9])


@pytest.mark.parametrize("gpus", [16, 64, 128])
@pytest.mark.parametrize(("gradient", "teacher"), [(2, 16e9), (4, 0.0)])
def test_published_runs_out_of_memory_are_explained(gpus: int, gradient: int, teacher: float) -> None:
    """Both with a teacher in memory and with gradients in fp32: the runs alone do not decide which."""
    plan = MemoryPlan(8e9, gpus, 80e9, StateBytes(gradient=gradient), teacher)
    fitted = {1: (64,), 2: (64, 128), 3: (64, 128, 256)}
    seen = [Observation(stage, size, True) for stage, sizes in fitted.items() for size in sizes]
    seen += [Observation(1, 128, False), Observation(2, 256, False)]
    bounds = activation_bounds(seen, plan)
    assert bounds.consistent and bounds.high is not None


def test_observations_that_contradict_the_plan() -> None:
    plan = MemoryPlan(8e9, 8, 80e9)
    assert not activation_bounds([Observation(1, 64, True), Observation(3, 8, False)], plan).consistent


MICRO_BATCHES = (16, 32, 64, 128)
SAMPLES = 512


def campaign(seed: int, platforms: int = 3, noise: float = 0.02) -> list[Run]:
    """Runs whose step takes g (a + c m) for computing, and communication once or in each micro-step by stage."""
    random = np.random.default_rng(seed)
    runs = []
    for platform in range(platforms):
        compute = np.exp(random.normal(-5, 0.5))
        overhead = compute * random.uniform(2, 10)
        transfer = compute * random.uniform(5, 30)
        for stage in (1, 2, 3):
            for micro_batch in MICRO_BATCHES:
                accumulated = SAMPLES // micro_batch
                seconds = accumulated * (overhead + compute * micro_batch)
                seconds += transfer * {1: 2, 2: 0.5 + accumulated, 3: 4 * accumulated}[stage]
                speed = SAMPLES / seconds * np.exp(random.normal(0, noise))
                runs.append(Run(len(runs) + 2, f"p{platform}", stage, micro_batch, accumulated, float(speed)))
    return runs


@pytest.mark.parametrize("seed", range(6))
def test_a_right_table_has_no_outlier(seed: int) -> None:
    assert find_outliers(campaign(seed)) == ()


@pytest.mark.parametrize(("place", "factor"), [(5, 0.45), (17, 2.2), (22, 10.0), (30, 0.1), (13, 60.0)])
def test_a_wrong_row_is_found_alone(place: int, factor: float) -> None:
    runs = campaign(place)
    right = runs[place].samples_per_second or 0.0
    runs[place] = runs[place]._replace(samples_per_second=right * factor)
    (found,) = find_outliers(runs)
    assert found.run.line == runs[place].line
    assert found.expected == pytest.approx(right, rel=0.35)


def test_several_wrong_rows_do_not_hide_each_other() -> None:
    runs = campaign(3)
    for place, factor in ((4, 0.3), (16, 3.0), (29, 0.3)):
        runs[place] = runs[place]._replace(samples_per_second=(runs[place].samples_per_second or 0.0) * factor)
    assert [found.run.line for found in find_outliers(runs)] == [6, 18, 31]


def test_with_three_rows_nothing_is_called_wrong() -> None:
    assert find_outliers([Run(2 + g, "p", 1, 64, g, speed) for g, speed in ((1, 10.0), (2, 11.0), (4, 90.0))]) == ()


def log(version: str, network: str, device: str, channels: int, extra: str = "") -> str:
    lines = [
        f"NCCL version {version}+cuda12.4",
        *([extra] if extra else []),
        f"Using network {network}",
        "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
        *(f"Channel {each:02d}/0 : 0[0] -> 8[0] [send] via NET/{device}" for each in range(channels)),
        f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, {channels} p2p channels, "
        "2 p2p channels per peer",
        f"AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..{channels - 1}}}",
    ]
    return "".join(f"node1:100:100 [0] NCCL INFO {line}\n" for line in lines)


def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str) -> Any:
    paths = [tmp_path / "old.log", tmp_path / "new.log"]
    for path, text in zip(paths, (old, new), strict=True):
        path.write_text(text)
    assert main(["tune", "report", "nccl", *map(str, paths), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_fallback_after_an_upgrade_is_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(tmp_path, capsys, log("2.19.3", "IB", "IB/0/GDRDMA", 4), log("2.27.5", "Socket", "Socket/1", 2))
    changes = {change["what"]: (change["old"], change["new"]) for change in found["changes"]}
    assert list(changes)[:2] == ["version", "network"] and changes["network"] == ("IB", "Socket")
    assert changes["transports"] == ("NET/IB with GPUDirect: 4", "NET/Socket: 2")
    assert changes["channels for collectives"] == ("4", "2")
    assert changes["AllReduce of 1048576 B"] == ("RING/SIMPLE, 4 channels", "RING/SIMPLE, 2 channels")
    moved = [(each["variable"], each["since"]) for each in found["defaults"]]
    assert ("NCCL_IB_TIMEOUT", "2.23") in moved and ("NCCL_CUMEM_ENABLE", "2.19") not in moved


def test_a_variable_that_is_set_has_no_default_that_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = log("2.27.5", "IB", "IB/0", 4, "NCCL_IB_TIMEOUT set by environment to 22.")
    found = compared(tmp_path, capsys, log("2.19.3", "IB", "IB/0", 4), new)
    assert "NCCL_IB_TIMEOUT" not in {each["variable"] for each in found["defaults"]}
    assert {"what": "NCCL_IB_TIMEOUT", "old": "not set", "new": "22"} in found["changes"]


def test_the_same_run_twice_has_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(tmp_path, capsys, log("2.27.5", "IB", "IB/0", 4), log("2.27.5", "IB", "IB/0", 4))
    assert found["changes"] == [] and found["defaults"] == [] and found["notes"] == []


def test_choices_in_each_form() -> None:
    lines = ["8 Bytes -> Algo 0 proto 1 time 3.2", "AllGather: 64 Bytes -> Algo 1 proto 2 time 4"]
    assert find_choices(lines)[0] == {"8 B": "TREE/LL128", "AllGather of 64 B": "RING/SIMPLE"}
