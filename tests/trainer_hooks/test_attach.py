"""Attaching in plain torch: whatever a script does, it does the same with the hooks."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.launch import start_fresh
from support.paths import REPOSITORY
from support.torch_version import GLOO_IS_RECORDED, TORCH
from support.warm import Warm

from laggard.kit.constants import PHASES
from laggard.rankfile import RankFileReader, Step

pytestmark = [pytest.mark.slow, pytest.mark.apart_by_parameter]  # trainings with torch

EXAMPLES = REPOSITORY / "docs" / "examples"

# A script of one process without torch.distributed.
SCRIPT = """
import os, sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps, model=model, optimizer=optimizer):
    for _ in range(steps):
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, warm_torch: Warm) -> Run:
    """Runs SCRIPT and what follows it. `fresh`: in a process that imports torch by itself."""

    def run(body: str, hooks: bool = True, fresh: bool = False, **extra: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT + body)
        words = [*(("-m", "laggard", "run") if hooks else ()), str(script)]
        environment = {"LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "LAGGARD_JOB_ID": "test", **extra}
        if not fresh:
            return warm_torch.run(words, environment)
        process = start_fresh(words, environment)
        with process:
            out, errors = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    return run


def steps(tmp_path: Path) -> list[list[Step]]:
    """The steps of every rank file, the longest first."""
    found = []
    for path in (tmp_path / "ranks").rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            assert counters is None or counters.errors == 0
            found.append(file.steps())
    return sorted(found, key=len, reverse=True)


def test_a_script_of_one_process_is_a_rank(run: Run, tmp_path: Path) -> None:
    done = run("train(5)\nprint(model.weight.sum().item())", fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run("train(5)\nprint(model.weight.sum().item())", hooks=False).stdout
    assert [[step.step for step in rank] for rank in steps(tmp_path)] == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("attached", ["", "; laggard.trainer_hooks.attach(model, optimizer)"])
def test_a_training_on_another_thread_than_the_first_is_recorded(run: Run, tmp_path: Path, attached: str) -> None:
    """Some frameworks train so. A later backward pass on a third thread is no part of the training."""
    body = f"""
import threading
def work():
    import laggard.trainer_hooks{attached}
    train(5)
def other():
    torch.nn.Linear(8, 2)(torch.ones(4, 8)).sum().backward()
for each in (work, other):
    thread = threading.Thread(target=each)
    thread.start()
    thread.join()
"""
    done = run(body)
    assert done.returncode == 0, done.stderr
    ((*recorded,),) = steps(tmp_path)
    assert [step.step for step in recorded] == [0, 1, 2, 3, 4]
    backward = [step.phases[PHASES.index("backward")] for step in recorded]
    assert all(backward), recorded


@pytest.mark.parametrize(
    "body", ["raise ValueError('no such batch')", "time.sleep(0.5); os._exit(3)", "sys.exit('stopped')"]
)
def test_a_script_that_fails_fails_the_same_way(run: Run, tmp_path: Path, body: str) -> None:
    with_hooks, without = run(f"train(3)\n{body}"), run(f"train(3)\n{body}", hooks=False)
    assert with_hooks.returncode == without.returncode != 0
    assert with_hooks.stdout == without.stdout
    assert with_hooks.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]
    assert [len(rank) for rank in steps(tmp_path)] == [3]


def test_with_laggard_off_torch_is_not_hooked(run: Run, tmp_path: Path) -> None:
    body = "import torch.distributed as d\nprint(torch.autograd.backward.__module__, type(d.ProcessGroup.allreduce))"
    assert run(body, fresh=True, LAGGARD_OFF="1").stdout == run(body, hooks=False).stdout
    assert not (tmp_path / "ranks").exists()


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "released"])
def test_new_optimizers_are_counted_alike_whatever_their_address(keeps: bool, run: Run, tmp_path: Path) -> None:
    body = f"""
kept = []
for _ in range(6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(2, optimizer=optimizer)
    kept += [optimizer] * {keeps}
    del optimizer
"""
    assert run(body).returncode == 0
    (rank,) = steps(tmp_path)
    assert len(rank) == 12, "an optimizer that is made after another's last update leads"


def test_an_update_that_raises_does_not_disturb_later_steps(run: Run, tmp_path: Path) -> None:
    body = """
class Failing(torch.optim.SGD):
    fails = False
    def step(self, closure=None):
        if self.fails: raise RuntimeError
        return super().step(closure)
optimizer = Failing(model.parameters(), lr=0.1)
train(1, optimizer=optimizer)
optimizer.fails = True
try: train(1, optimizer=optimizer)
except RuntimeError: pass
optimizer.fails = False
train(2, optimizer=optimizer)
model(torch.ones(1, 8)).sum().backward(); time.sleep(0.05); optimizer.step()
def slow(_): time.sleep(0.1)
model.weight.register_hook(slow)
train(1, optimizer=optimizer)
"""
    assert run(body).returncode == 0
    (rank,) = steps(tmp_path)
    assert len(rank) == 5
    assert rank[-1].phases[2] >= 100_000_000, "the backward pass is recorded as such again"


WRAPPED = """
import pickle
class Wrapper:
    def __init__(self, inner): self.inner, self.param_groups = inner, inner.param_groups
    def step(self, closure=None): return self.inner.step(closure)
class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner): self.inner, self.param_groups = inner, inner.param_groups
    def step(self, closure=None): return self.inner.step(closure)
class Own:
    def __init__(self, inner): self.param_groups = inner.param_groups
    def step(self): [p.data.sub_(p.grad, alpha=0.1) for group in self.param_groups for p in group["params"]]
for kind in (Wrapper, Lookahead, Own):
    for enabled in (True, False):
        scaler, wrapped = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=2.0), kind(optimizer)
        for number in range(4):
            loss = model(torch.ones(4, 8)).sum() * (float("inf") if enabled and number == 0 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(wrapped)
            scaler.update()
            optimizer.zero_grad()
        print(kind.__name__, enabled, model.weight.sum().item(), len(pickle.dumps(vars(wrapped))))
"""


def test_the_scaler_takes_optimizers_that_are_not_torchs(run: Run, tmp_path: Path) -> None:
    with_hooks, without = run(WRAPPED), run(WRAPPED, hooks=False)
    assert without.stdout.count("\n") == 6, without.stderr
    assert with_hooks.stdout == without.stdout, with_hooks.stderr
    assert [len(rank) for rank in steps(tmp_path)] == [24 - 2], "each new optimizer's first update joins a step"


def test_a_closures_backward_pass_is_not_part_of_the_update(run: Run, tmp_path: Path) -> None:
    body = """
model.weight.register_hook(lambda _: time.sleep(0.05))
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).sum()
    loss.backward()
    return loss
for _ in range(3): optimizer.step(closure)
"""
    assert run(body).returncode == 0
    (rank,) = steps(tmp_path)
    for step in rank:
        assert step.phases[2] >= 50_000_000 and sum(step.phases) == step.end - step.start, "counted, and once"


def test_workers_and_forks_do_not_write_as_the_rank(run: Run, tmp_path: Path) -> None:
    body = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index):
        train(1)
        return torch.ones(8)
train(1)
for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2): train(1)
from laggard.trainer_hooks.attach import session
session().captures.count = 1  # another thread captures a CUDA graph: the child does not
if os.fork() == 0:
    train(50); os._exit(session().captures.under_way())
assert os.wait()[1] == 0
os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])
"""
    done = run(body)
    assert (done.returncode, done.stdout) == (0, "another program\n"), done.stderr
    trained = [rank for rank in steps(tmp_path) if rank]
    assert [len(rank) for rank in trained] == [5], "one step before, one for each of four batches, and none of a fork"


def test_compiled_code_is_the_same_with_the_hooks(run: Run, tmp_path: Path) -> None:
    body = """
compiled = torch.compile(model, backend="eager", fullgraph=True)
step = torch.compile(optimizer.step, backend="eager")
for _ in range(4):
    compiled(torch.ones(4, 8)).square().mean().backward()
    step()
    optimizer.zero_grad()
counters = torch._dynamo.utils.counters
print(model.weight.sum().item(), sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"])
"""
    with_hooks, without = run(body, fresh=True), run(body, hooks=False)
    assert with_hooks.returncode == 0, with_hooks.stderr
    assert with_hooks.stdout == without.stdout


ATTACHED = """
import copy, io
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
    def forward(self, batch):
        return self.second(torch.nn.functional.relu(self.first(batch)))
class Twice(Model):
    def __call__(self, batch):
        return 2 * super().__call__(batch)
model = KIND
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if "laggard" in sys.modules:
    import laggard.trainer_hooks
    laggard.trainer_hooks.attach(model, optimizer)
train(6, model, optimizer)
def loss():
    return model(torch.ones(4, 8)).square().mean()
def graphs():
    return sorted(torch._dynamo.utils.counters["stats"].items())
def use(name, act):
    print(name, act(), sum(p.sum().item() for p in model.parameters()))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
"""

USES = """
def saved():
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue().hex()
use("saved", saved)
use("copied", lambda: (sorted(vars(copy.deepcopy(model))), train(3, copy.deepcopy(model), optimizer)))
use("traced by fx", lambda: torch.fx.symbolic_trace(model).code)
use("a part of what is traced", lambda: torch.fx.symbolic_trace(torch.nn.Sequential(model, torch.nn.ReLU())).code)
use("traced by jit", lambda: torch.jit.trace(model, torch.ones(4, 8)).code)
use("scripted", lambda: torch.jit.script(model).code)
use("exported", lambda: torch.export.export(model, (torch.ones(4, 8),)).graph)
whole = dict(backend="eager", fullgraph=True)
use("compiled", lambda: (train(4, torch.compile(model, **whole), optimizer), graphs()))
use("in what is compiled", lambda: ([torch.compile(loss, **whole)().backward() for _ in range(4)], graphs()))
use("compiled in place", lambda: (model.compile(**whole), train(4, model, optimizer), graphs()))
"""


@pytest.mark.parametrize("kind", ["Model()", "Twice()"])
def test_a_class_pickled_with_its_functions_is_read_without_laggard(kind: str, run: Run, tmp_path: Path) -> None:
    body = ATTACHED.replace("KIND", kind) + "import cloudpickle; print(cloudpickle.dumps(model).hex())"
    done = run(body)
    assert done.returncode == 0, done.stderr
    read = """
import pickle, sys, torch
model = pickle.loads(bytes.fromhex(sys.stdin.read()))
model(torch.ones(4, 8)).square().mean().backward()
print(type(model).__name__, model.first.weight.grad is not None, [name for name in sys.modules if "laggard" in name])
"""
    command = [sys.executable, "-c", read]
    reader = subprocess.run(command, input=done.stdout, capture_output=True, text=True, timeout=300)
    assert reader.stdout == f"{kind[:-2]} True []\n", reader.stderr


@pytest.mark.parametrize("kind", ["torch.nn.Sequential(Model(), torch.nn.ReLU())", "Twice()"])
def test_an_attached_module_is_the_same_to_torch(kind: str, run: Run, tmp_path: Path) -> None:
    body = ATTACHED.replace("KIND", kind) + USES
    with_hooks, without = run(body, fresh=True), run(body, hooks=False)
    assert without.returncode == 0, without.stderr
    assert with_hooks.stdout == without.stdout, with_hooks.stderr
    (recorded,) = steps(tmp_path)
    forward_seen = [step.work > 0 for step in recorded]
    assert forward_seen[1:9] == [True] * 5 + [False] * 3, "six steps of the module, three of its copy"
    assert len(forward_seen) == 17 and all(forward_seen[13:]), (
        "four compiled, which depends on torch, and four compiled in place"
    )


@pytest.mark.parametrize("hooks", [True, False], ids=["laggard run", "attach in the script"])
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "deepspeed_zero", "huggingface", "lightning_ddp"])
def test_the_examples_of_the_documentation(name: str, hooks: bool, launch: Callable[..., Any], tmp_path: Path) -> None:
    if name == "fsdp2" and TORCH < (2, 8):
        pytest.skip("torch 2.4 has no fully_shard there, and that of torch 2.6 does not run on the CPU")
    if name == "lightning_ddp":
        pytest.importorskip("lightning")
    if name == "huggingface":
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
    launch(_without_compiling(EXAMPLES / f"{name}.py", tmp_path), hooks=hooks, fresh=1 if hooks else 0)
    for path in (tmp_path / "ranks").rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            assert counters is not None and (counters.steps, counters.errors) == (10, 0)
            assert counters.lost == 0 or not GLOO_IS_RECORDED
            assert min(counters.phases_ns[1:4]) > 0, "forward, backward and optimizer are all recorded"
            assert {lane.role for lane in file.lanes()} <= {"dp", "world"}
            assert "dp" in {lane.role for lane in file.lanes()} or not GLOO_IS_RECORDED
    assert len(list((tmp_path / "ranks").rglob("*.rank"))) == 2


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("accelerate_loop", {"dp", "world"}),
        ("torchtitan_style", {"dp", "tp", "world"}),
        ("megatron_style", {"dp", "tp", "world"}),
    ],
)
def test_the_examples_in_the_style_of_others(
    name: str, roles: set[str], launch: Callable[..., Any], tmp_path: Path
) -> None:
    if name == "accelerate_loop":
        pytest.importorskip("accelerate")
    if name == "torchtitan_style" and TORCH < (2, 8):
        pytest.skip("torch 2.4 has no fully_shard there, and that of torch 2.6 does not run on the CPU")
    ranks = 2 if name == "accelerate_loop" else 4  # two tensor-parallel groups of two
    launch(EXAMPLES / f"{name}.py", hooks=True, fresh=1, ranks=ranks)
    seen = set()
    for path in (tmp_path / "ranks").rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            assert counters is not None and (counters.steps, counters.errors) == (10, 0)
            assert min(counters.phases_ns[1:4]) > 0, "forward, backward and optimizer are all recorded"
            seen |= {lane.role for lane in file.lanes()}
    assert seen <= roles and (roles - {"world"} <= seen or not GLOO_IS_RECORDED), seen


def _without_compiling(example: Path, folder: Path) -> Path:
    """The example; of DeepSpeed's a copy that keeps DeepSpeed from compiling its shared-memory collectives: that takes
    a minute, and a test that is killed meanwhile leaves a lock on which every later training hangs."""
    text = example.read_text()
    if "import deepspeed\n" not in text:
        return example
    off = 'import deepspeed\n\ndeepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False\n'
    copy = folder / example.name
    copy.write_text(text.replace("import deepspeed\n", off, 1))
    return copy


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_it_is_started(path: Path) -> None:
    """By a whole command: alone, a script of several ranks ends with an error about RANK."""
    docstring = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
    commands = [line.strip() for line in docstring.splitlines() if line.startswith("    ")]
    assert any(f"docs/examples/{path.name}" in command for command in commands), docstring
    launchers = ("torchrun --nproc-per-node ", "LAGGARD_RECORD_DIR=$PWD/recording python ")
    assert commands[0].startswith(launchers), commands[0]
