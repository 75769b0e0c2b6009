"""Trainings with torch's modules, optimizers and DDP: nothing is other with the hooks, and who leaves is told."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.paths import TRAINING
from support.warm import Warm

from laggard.agent.ranks.reader import RankFiles
from laggard.kit.constants import PHASES
from laggard.rankfile import RankFileReader, Step
from laggard.recording.judged import judge_recording

pytestmark = pytest.mark.slow

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


# A group written in Python, as torchft's are and those of torch's own test_c10d_pypg.py.
PYTHON_GROUP = """
import weakref, torch, torch.distributed as dist

class Done(dist.Work):
    def __init__(self, result, group):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)
        self.group = weakref.ref(group)
    def wait(self, timeout=None): return True
    def get_future(self): return self.future

class Alone(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 1)
        self.calls, self.works = [], []
    def note(self, name, result):
        self.calls.append(name)
        self.works.append(Done(result, self))
        return self.works[-1]
    def broadcast(self, tensors, opts): return self.note("broadcast", tensors)
    def allreduce(self, tensors, opts): return self.note("allreduce", tensors)
    def allgather(self, outputs, inputs, opts):
        for output, given in zip(outputs, inputs): output[0].copy_(given)
        return self.note("allgather", outputs)
    def size(self): return 1
    def getSize(self): return 1
    def getBackendName(self): return "alone"

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
group = Alone()
parts = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))  # with buffers, which DDP broadcasts
model = torch.nn.parallel.DistributedDataParallel(parts, process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(3, 4)).square().sum().backward()
    optimizer.step()
print(group.calls)
dist.destroy_process_group()
"""


def test_a_group_written_in_python_is_called_as_without_the_hooks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PYTHON_GROUP)
    environment = {**os.environ, "LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "GLOO_SOCKET_IFNAME": "lo"}
    with_hooks, without = (
        subprocess.run(
            [sys.executable, *hooks, str(script)], capture_output=True, text=True, timeout=300, env=environment
        )
        for hooks in (("-m", "laggard", "run"), ())
    )
    assert with_hooks.returncode == without.returncode == 0, with_hooks.stderr
    assert with_hooks.stdout == without.stdout and without.stdout.count("broadcast") > 4


SCRIPT = """
import os, signal, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def train(steps):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
train(12)
"""

LEAVES = "dist.destroy_process_group(); time.sleep(0.3); "


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (LEAVES + "os._exit(1)", "finished"),
        (LEAVES + "os.kill(os.getpid(), signal.SIGKILL)", "finished"),
        (LEAVES, "finished"),
        ("time.sleep(0.3); os._exit(1)", "died"),
        # A forked child that ends the groups that it was born with says nothing for its parent.
        ("pid = os.fork()\nif not pid: " + LEAVES + "os._exit(0)\nos.waitpid(pid, 0); os._exit(1)", "died"),
        (LEAVES + "sys.exit(3)", "died"),
        (LEAVES + "raise KeyError", "died"),
        (LEAVES + "train(2); after_a_beat(); os._exit(1)", "died"),  # it came back
        ("try: raise KeyError\nfinally: dist.destroy_process_group(); time.sleep(0.3); os._exit(1)", "died"),
    ],
)
def test_who_has_left_is_not_dead(end: str, state: str, tmp_path: Path, warm_torch_alone: Warm) -> None:
    (tmp_path / "script.py").write_text((TRAINING / "beats.py").read_text() + SCRIPT + end)
    environment = {
        "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
        "LAGGARD_RECORD_DIR": str(tmp_path / "recording"),
        "LAGGARD_JOB_ID": "leaves",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    warm_torch_alone.run(["-m", "laggard", "run", str(tmp_path / "script.py")], environment)
    (row,) = RankFiles(str(tmp_path / "ranks"), "n0").read().ranks
    assert row.state == state
    location = judge_recording([str(tmp_path / "recording")]).location
    assert any(note.kind == "rank_died" for note in location.notes) == (state == "died"), location.notes
