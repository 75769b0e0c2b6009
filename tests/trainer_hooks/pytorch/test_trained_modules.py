"""Modules that nothing names, as in a loop of one's own without DDP, FSDP or an engine: found by what the optimizer
trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.warm import Warm

from laggard.kit.constants import PHASES
from laggard.rankfile import RankFileReader, Step

pytestmark = pytest.mark.slow  # trainings with torch

LOOP = """
import time, torch
from torch import nn
class Slow(nn.Linear):
    def forward(self, data):
        time.sleep(0.02)
        return super().forward(data)
{model}
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for _ in range(6):
    time.sleep(0.03)  # it makes its own input
    called(torch.ones(3, 4)).square().sum().backward()
    optimizer.step(); optimizer.zero_grad()
assert type(called).__name__ == "{name}"
"""
MODELS = {
    "alone": ("trained = called = Slow(4, 4)", "Slow"),
    "nested": ("trained = called = nn.Sequential(nn.Identity(), Slow(4, 4))", "Sequential"),
    "in_a_list": ("trained = nn.ModuleList([Slow(4, 4)]); called = trained[0]", "Slow"),
    "in_a_dict": ("trained = nn.ModuleDict(dict(it=Slow(4, 4))); called = trained['it']", "Slow"),
    "beside_others": ("frozen = nn.Linear(4, 4).requires_grad_(False); trained = called = Slow(4, 4)", "Slow"),
    "beside_a_half_made": (
        "class Half(nn.Module):\\n    def __init__(self): pass\\nhalf = Half(); trained = called = Slow(4, 4)",
        "Slow",
    ),
}


@pytest.fixture
def steps_of(tmp_path: Path, warm_torch: Warm) -> Callable[[str], list[Step]]:
    def steps_of(script: str) -> list[Step]:
        (tmp_path / "script.py").write_text(script)
        environment = {"LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "LAGGARD_JOB_ID": "own", "LAGGARD_HOST_CLOCK": "1"}
        done = warm_torch.run(["-m", "laggard", "run", str(tmp_path / "script.py")], environment)
        assert done.returncode == 0, done.stderr
        (path,) = (tmp_path / "ranks").rglob("*.rank")
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            assert counters is not None and counters.errors == 0
            return file.steps()

    return steps_of


@pytest.mark.parametrize("kind", MODELS)
def test_time_before_the_forward_pass_is_not_forward(kind: str, steps_of: Callable[[str], list[Step]]) -> None:
    model, name = MODELS[kind]
    steps = steps_of(LOOP.format(model=model.replace("\\n", "\n"), name=name))
    forward, between = PHASES.index("forward"), PHASES.index("between_steps")
    assert len(steps) == 6
    for step in steps[1:]:  # the module is found once it has been trained
        assert step.phases[between] >= 30_000_000 and step.phases[forward] >= 20_000_000, step
        assert step.waited + sum(step.phases) == step.end - step.start, "each is counted once"
        assert step.work == 12


def test_a_wrapper_left_in_evaluation_mode_around_a_module_that_trains_is_trained(
    steps_of: Callable[[str], list[Step]],
) -> None:
    """Lightning puts the wrapper into evaluation mode to validate, and only what it wraps back into training."""
    steps = steps_of("""
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval(); model.module.train()
for _ in range(4):
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()
model.eval()
for _ in range(2):
    with torch.no_grad(): model(torch.ones(3, 4))
model.module.train(); model(torch.ones(3, 4)).square().sum().backward(); optimizer.step()
""")
    forward, evaluation = PHASES.index("forward"), PHASES.index("evaluation")
    assert len(steps) == 5
    assert all(step.phases[forward] > 0 and step.work == 12 for step in steps[1:])
    assert [step.phases[evaluation] > 0 for step in steps] == [False] * 4 + [True]


def test_a_checkpoints_first_update_is_no_step(steps_of: Callable[[str], list[Step]]) -> None:
    """torch's distributed checkpoints call step() before they load the state, where there is none."""
    steps = steps_of("""
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
model = torch.nn.Linear(4, 4)
optimizers = [torch.optim.AdamW(half, lr=0.1) for half in ([model.weight], [model.bias])]
for optimizer in optimizers:
    assert get_optimizer_state_dict(model, optimizer)["state"]
for _ in range(4):
    model(torch.ones(3, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step(); optimizer.zero_grad()
""")
    assert len(steps) == 4


def test_a_step_whose_passes_no_hook_sees_is_a_step(steps_of: Callable[[str], list[Step]]) -> None:
    """A stage of a zero-bubble pipeline calls autograd.grad alone; others make their gradients by hand."""
    steps = steps_of("""
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = torch.nn.functional.linear(torch.ones(3, 4), model.weight, model.bias).square().sum()
    model.weight.grad, model.bias.grad = torch.autograd.grad(loss, [model.weight, model.bias])
    optimizer.step(); optimizer.zero_grad()
""")
    assert len(steps) == 4
