"""Digests of the parameters of real trainings: a bit that flips on one rank is told, and nothing of a healthy one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.locate.job_timings import JobTimings, RankDigests, digests
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.rankfile import RankFileReader
from laggard.rankfile.fact_names import DIGEST_SHARDED
from laggard.recording.reader import read_recording

pytestmark = [pytest.mark.slow, pytest.mark.apart_by_parameter]  # trainings with torch

EVERY, STEPS = 3, 14

TRAINING = """
import hashlib, json, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

plan = json.loads(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
kind = getattr(torch, plan["dtype"])
parts = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to(kind)
model = DistributedDataParallel(parts)
makers = {
    "SGD": lambda it: torch.optim.SGD(it, lr=0.05),
    "momentum": lambda it: torch.optim.SGD(it, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda it: torch.optim.Adam(it, lr=0.01),
    "AdamW": lambda it: torch.optim.AdamW(it, lr=0.01),
}
if plan["zero"]:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
else:
    optimizer = makers[plan["optimizer"]](model.parameters())
def flip(step):
    if [rank, step] == plan["flip"][:2]:
        parameter = list(parts.parameters())[plan["flip"][2]].detach()
        bits = {2: torch.int16, 4: torch.int32}[parameter.element_size()]
        mask = 1 << plan["flip"][3]
        parameter.view(bits).view(-1)[0] ^= mask - (1 << 32 if mask == 1 << 31 else 0)
if plan["zero"]:  # right behind the update, before the step is over
    optimizer.register_step_post_hook(lambda *_: flip(step))
data = torch.Generator().manual_seed(rank)
for step in range(plan["steps"]):
    model(torch.randn(4, 6, generator=data).to(kind)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if not plan["zero"]:
        flip(step)
text = b"".join(each.detach().float().numpy().tobytes() for each in parts.parameters())
print(hashlib.sha256(text).hexdigest())
dist.destroy_process_group()
"""

SHARDED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
DEEPSPEED = """
import sys, torch
import deepspeed
from torch import nn
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
rank = torch.distributed.get_rank()
torch.manual_seed(7)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config
)
data = torch.Generator().manual_seed(rank)
for _ in range(12):
    engine.backward(engine(torch.randn(4, 6, generator=data)).square().mean())
    engine.step()
torch.distributed.destroy_process_group()
"""

Train = Callable[..., Any]


@pytest.fixture
def train(tmp_path: Path, launch: Callable[..., Any]) -> Train:
    script = tmp_path / "script.py"
    script.write_text(TRAINING)

    def run(ranks: int, optimizer: str = "SGD", flip: tuple[int, ...] = (), every: int = EVERY, **more: Any) -> Any:
        plan = {"optimizer": optimizer, "flip": flip, "steps": STEPS, "zero": False, "dtype": "float32", **more}
        extra = {"LAGGARD_RECORD_DIR": str(tmp_path / "recording"), "LAGGARD_HOST_CLOCK": "1"}
        extra |= {"LAGGARD_DIGEST_STEPS": str(every)} if every else {}
        return [it.stdout for it in launch(script, [json.dumps(plan)], ranks=ranks, extra=extra)]

    return run


def verdict_of(folder: Path) -> Location:
    return locate(read_recording([folder / "recording"]).timings)


def corrupted(location: Location) -> list[tuple[tuple[int, ...], int | None]]:
    return [(culprit.ranks, culprit.since_step) for culprit in location.culprits if culprit.kind == "corrupt"]


def digest_notes(location: Location) -> list[str]:
    return [note.kind for note in location.notes if note.kind in ("corrupt_pair", "digest_skipped")]


OPTIMIZERS = ("SGD", "momentum", "Adam", "AdamW")
HEALTHY = [(optimizer, 3 + round_ % 2, round_) for optimizer in OPTIMIZERS for round_ in range(5)]
FLIPS = [
    (optimizer, 3 + (place + round_) % 2, (place + round_) % 3, 2 + round_ * 2, place + round_ % 2, bit)
    for place, optimizer in enumerate(OPTIMIZERS)
    for round_, bit in enumerate((3, 12, 20, 22, 31))
]


@pytest.mark.parametrize(("optimizer", "ranks", "round_"), HEALTHY)
def test_of_a_healthy_training_nobody_is_accused(
    optimizer: str, ranks: int, round_: int, train: Train, tmp_path: Path
) -> None:
    train(ranks, optimizer, dtype="bfloat16" if round_ == 4 else "float32")
    location = verdict_of(tmp_path)
    assert corrupted(location) == [] and digest_notes(location) == []
    told = read_recording([tmp_path / "recording"]).timings.digests
    assert [list(each.by_step) for each in told if each is not None] == [list(range(0, STEPS, EVERY))] * ranks
    assert all(len(set(each.by_step.values())) == 5 for each in told if each is not None)  # each update changes it


@pytest.mark.parametrize(("optimizer", "ranks", "rank", "step", "parameter", "bit"), FLIPS)
def test_a_flipped_bit_names_its_rank(
    optimizer: str, ranks: int, rank: int, step: int, parameter: int, bit: int, train: Train, tmp_path: Path
) -> None:
    train(ranks, optimizer, (rank, step, parameter, bit))
    first = -(-(step + 1) // EVERY) * EVERY  # the first digest after the step behind which the bit flipped
    location = verdict_of(tmp_path)
    assert corrupted(location) == [((rank,), first)] and location.verdict is Verdict.FAIL


def test_two_replicas_differ_and_nobody_is_named(train: Train, tmp_path: Path) -> None:
    train(2, "Adam", (1, 4, 0, 22))
    location = verdict_of(tmp_path)
    assert corrupted(location) == [] and digest_notes(location) == ["corrupt_pair"]


@pytest.mark.parametrize("step", [None, 6])
def test_zero_1_keeps_whole_parameters_which_are_compared(step: int | None, train: Train, tmp_path: Path) -> None:
    """Each update takes the parameters from their owners: what went wrong in between is seen at the step of a digest
    alone."""
    train(3, zero=True, flip=() if step is None else (1, step, 0, 22))
    location = verdict_of(tmp_path)
    assert corrupted(location) == ([] if step is None else [((1,), step)])
    assert digest_notes(location) == []


@pytest.mark.parametrize("optimizer", ["momentum", "AdamW"])
def test_the_training_is_the_same_to_the_bit(optimizer: str, train: Train, tmp_path: Path) -> None:
    assert train(2, optimizer, every=1) == train(2, optimizer, every=0)


def test_the_rank_file_has_the_first_and_the_last_digests(train: Train, tmp_path: Path) -> None:
    train(2, every=1, steps=24)
    for path in (tmp_path / "ranks").rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            found = digests(file.facts())
            counters = file.counters()
        assert counters is not None and counters.errors == 0
        assert found is not None and list(found.by_step) == [0, 16, 20, 21, 22, 23]


@pytest.fixture
def recorded(tmp_path: Path, launch: Callable[..., Any]) -> Callable[..., JobTimings]:
    def recorded(text: str, *words: str) -> JobTimings:
        (tmp_path / "script.py").write_text(text)
        extra = {"LAGGARD_RECORD_DIR": str(tmp_path / "recording"), "LAGGARD_DIGEST_STEPS": "2"}
        launch(tmp_path / "script.py", words, extra=extra)
        return read_recording([tmp_path / "recording"]).timings

    return recorded


def test_of_fsdp_nothing_is_compared_and_that_is_said(recorded: Callable[..., JobTimings]) -> None:
    timings = recorded(SHARDED)
    assert timings.digests == (RankDigests(1, {}, DIGEST_SHARDED),) * 2
    assert digest_notes(locate(timings)) == ["digest_skipped"]


@pytest.mark.parametrize("stage", ["1", "3"])
def test_of_deepspeed_whole_parameters_are_compared(stage: str, recorded: Callable[..., JobTimings]) -> None:
    timings = recorded(DEEPSPEED, stage)
    assert digest_notes(locate(timings)) == (["digest_skipped"] if stage == "3" else [])
    if stage == "3":
        assert timings.digests == (RankDigests(1, {}, DIGEST_SHARDED),) * 2
    else:
        one, other = timings.digests
        assert one is not None and one == other and len(set(one.by_step.values())) > 4


def test_without_the_variable_there_are_no_digests(train: Train, tmp_path: Path) -> None:
    train(2, every=0)
    assert not any(read_recording([tmp_path / "recording"]).timings.digests)
