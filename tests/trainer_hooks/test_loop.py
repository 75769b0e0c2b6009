"""`step` and `phase` in a loop of one's own: what they record, and that they do no harm where laggard does nothing."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launch import start_fresh
from support.warm import Warm

from laggard.kit.constants import PHASES
from laggard.rankfile import RankFileReader, Step

Run = Callable[..., subprocess.CompletedProcess[str]]


def run_fresh(folder: Path, script: str, hooks: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    words = [*(("-m", "laggard", "run") if hooks else ()), str(folder / "script.py")]
    environment = {"LAGGARD_RANK_DIR": str(folder / "ranks"), "LAGGARD_JOB_ID": "loop", **extra}
    with start_fresh(words, environment) as process:
        out, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


def steps_in(folder: Path) -> list[Step]:
    (path,) = (folder / "ranks").rglob("*.rank")
    with RankFileReader(str(path)) as file:
        counters = file.counters()
        assert counters is not None and counters.errors == 0
        return file.steps()


def seconds_in(step: Step, phase: str) -> float:
    """What the step counts for the phase; each of its moments counts for one phase."""
    assert step.waited + sum(step.phases) == step.end - step.start
    return step.phases[PHASES.index(phase)] / 1e9


BARE = """
import sys, time
from laggard.trainer_hooks import phase, step
@phase("save")
def save(): time.sleep(0.02)
for number in range(6):
    with step():
        with phase("{named}"):
            time.sleep({seconds})
        time.sleep(0.01)
    if number == 3: save()
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("named", "seconds", "found"), [("data", 0.05, "input"), ("backward", 0.05, "backward"), ("data", 0.0, "forward")]
)
def test_a_loop_without_torch_says_where_its_steps_end(tmp_path: Path, named: str, seconds: float, found: str) -> None:
    done = run_fresh(tmp_path, BARE.format(named=named, seconds=seconds))
    assert done.returncode == 0 and done.stderr == ""
    steps = steps_in(tmp_path)
    assert [step.step for step in steps] == list(range(6))
    assert all(seconds_in(step, found) >= (seconds or 0.01) for step in steps[2:4])
    assert seconds_in(steps[4], "checkpoint") >= 0.02  # what lies between steps belongs to the next


def test_an_unknown_phase_is_told_of_once_and_counts(tmp_path: Path) -> None:
    done = run_fresh(tmp_path, BARE.format(named="tea", seconds=0.05))
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("laggard: phase('tea') counts as between_steps; the phases are input, forward")
    assert seconds_in(steps_in(tmp_path)[1], "between_steps") >= 0.05


@pytest.mark.parametrize("extra", [{}, {"LAGGARD_OFF": "1"}])
def test_where_laggard_does_nothing_nothing_is_written_and_results_come_back(
    tmp_path: Path, extra: dict[str, str]
) -> None:
    script = BARE.format(named="data", seconds=0.0) + "print(phase('eval')(lambda it: it + 1)(2))"
    done = run_fresh(tmp_path, script, hooks=bool(extra), **extra)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    assert not list(tmp_path.rglob("*.rank"))


def test_exceptions_get_out_and_leave_no_phase_open(tmp_path: Path) -> None:
    script = """
from laggard.trainer_hooks import phase, step
for number in range(4):
    try:
        with step(), phase("eval"), phase("logging"):
            raise KeyError(number)
    except KeyError as error:
        assert error.args == (number,)
with step(): pass
"""
    done = run_fresh(tmp_path, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert [step.step for step in steps_in(tmp_path)] == list(range(5))


def test_a_rank_whose_waits_no_hook_sees_says_so(tmp_path: Path) -> None:
    done = run_fresh(tmp_path, BARE.format(named="data", seconds=0.0), RANK="1", WORLD_SIZE="2")
    assert done.returncode == 0
    (path,) = (tmp_path / "ranks").rglob("*.rank")
    with RankFileReader(str(path)) as file:
        assert (file.identity["rank"], file.facts()["unseen_waits"]) == (1, True)


def test_waits_that_the_loop_tells_of_are_waits(tmp_path: Path) -> None:
    script = """
import time
from laggard.trainer_hooks import step, waits
@waits()
def gather(): time.sleep(0.03)
for number in range(6):
    with step():
        with waits():
            time.sleep(0.02)
            gather()
"""
    done = run_fresh(tmp_path, script, RANK="1", WORLD_SIZE="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(0.05e9 <= step.waited <= step.end - step.start for step in steps_in(tmp_path)[1:]), "each moment once"
    (path,) = (tmp_path / "ranks").rglob("*.rank")
    with RankFileReader(str(path)) as file:
        assert "unseen_waits" not in file.facts()


MPI = """
import time
class Request:
    def Wait(self): time.sleep(0.05)
    Start = lambda self: None
class Comm: pass
class Intracomm(Comm):
    def __new__(cls, other=None): return object.__new__(cls)
    def Allreduce(self, sent, received): time.sleep(0.05); received[:] = sent
    def bcast(self, it, root=0): time.sleep(0.05); return it
    def Probe(self, source=0): time.sleep(0.05)
    def Ibarrier(self): return Request()
    Send_init = Ibarrier
    def Get_rank(self): return 1
    def Split(self, color=0, key=0): return Intracomm()
    Create = Create_group = Split_type = Split
    def Create_cart(self, dims): return Cartcomm()
class Cartcomm(Intracomm): pass
COMM_WORLD = Intracomm()
"""
ON_A_THREAD = "other = threading.Thread(target=part.Probe); other.start(); other.join()"


@pytest.mark.parametrize(
    ("more", "unseen"),
    [
        ("", False),
        ("part.Probe()", False),
        ("part.Ibarrier().Wait()", True),
        ("sent = part.Send_init(); sent.Start(); sent.Wait()", True),
        ("world.Create_cart([2, 2]).Probe()", True),
        (ON_A_THREAD, True),
    ],
)
def test_what_mpi4py_waits_for_is_a_wait(tmp_path: Path, more: str, unseen: bool) -> None:
    """The module stands in for mpi4py, whose classes are C's: only a subclass can take the place of COMM_WORLD's. What
    a request waits for, and what waits beside the loop, no hook sees, and the rank says so."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text(MPI)
    script = f"""
import threading
from mpi4py import MPI
from laggard.trainer_hooks import step
world, sums = MPI.COMM_WORLD, [0]
part = world.Split(0)
for number in range(6):
    with step():
        world.Allreduce([number], sums)
        assert (part.bcast(number), sums, part.Get_rank()) == (number, [number], 1)
        {more}
"""
    done = run_fresh(tmp_path, script, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4", SLURM_PROCID="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(step.waited >= 0.1e9 + 0.05e9 * (more == "part.Probe()") for step in steps_in(tmp_path)[1:])
    (path,) = (tmp_path / "ranks").rglob("*.rank")
    with RankFileReader(str(path)) as file:
        assert (file.identity["rank"], file.identity["world_size"]) == (1, 4)
        assert file.facts().get("unseen_waits", False) is unseen


TORCH = """
import time, torch
from laggard.trainer_hooks import attach, phase, step
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
attach(model, optimizer)
def train():
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def train(tmp_path: Path, warm_torch: Warm) -> Iterator[Callable[[str], list[Step]]]:
    def train(body: str) -> list[Step]:
        (tmp_path / "script.py").write_text(TORCH + body)
        environment = {"LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "LAGGARD_JOB_ID": "loop"}
        done = warm_torch.run([str(tmp_path / "script.py")], environment)
        assert done.returncode == 0, done.stderr
        return steps_in(tmp_path)

    yield train


@pytest.mark.slow
def test_in_a_loop_with_torch_the_hooks_name_what_the_loop_does_not(train: Callable[[str], list[Step]]) -> None:
    """With step() two updates make one step; its forward and backward passes are seen all the same."""
    steps = train("for _ in range(5):\n    with step():\n        train(); train()\n")
    assert [step.step for step in steps] == list(range(5))
    assert all(step.phases[PHASES.index(name)] > 0 for step in steps[1:] for name in ("backward", "optimizer"))
    assert [step.work for step in steps] == [64] * 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eval", "checkpoint", "log"])
def test_a_named_phase_stands_apart_from_what_lies_between_steps(train: Callable[[str], list[Step]], name: str) -> None:
    steps = train(f"for _ in range(5):\n    train()\n    with phase({name!r}): time.sleep(0.03)\n")
    full = {"eval": "evaluation", "log": "logging"}.get(name, name)
    assert all(seconds_in(step, full) >= 0.03 for step in steps[1:])


@pytest.mark.slow
def test_frameworks_say_what_they_do(train: Callable[[str], list[Step]]) -> None:
    """A checkpoint by torch.save, an evaluation by a model in that mode, with its input, and TensorBoard's writer."""
    body = """
import io, sys, types
from torch.utils.data import DataLoader
writer = types.ModuleType("tensorboardX.writer")  # stands in for the package, which is not installed
loader = DataLoader(torch.ones(6, 8), batch_size=2)
for number in range(6):
    train()
    if number == 1:
        torch.save({"of": model.state_dict(), "late": time.sleep(0.0)}, io.BytesIO())
    if number == 2:
        model.eval()
        for batch in loader: model(batch); time.sleep(0.02)
        model.train()
"""
    steps = train(body)
    checkpoint, evaluation, given = (PHASES.index(name) for name in ("checkpoint", "evaluation", "input"))
    assert steps[2].phases[checkpoint] > 0 and steps[3].phases[evaluation] >= 40_000_000
    assert [step.phases[evaluation] for step in (*steps[:3], *steps[4:])] == [0] * 5
    assert steps[3].phases[given] == 0 or steps[3].phases[given] < steps[3].phases[evaluation]
    assert [step.work for step in steps] == [32] * 6  # an evaluation is no work of the step


@pytest.mark.slow
def test_the_ranks_own_times_are_there_for_other_tools(train: Callable[[str], list[Step]]) -> None:
    """Twice, each time since the last; nothing before the first step."""
    steps = train("""
from laggard.trainer_hooks import metrics
assert metrics() == {}
for count in (4, 2):
    for _ in range(count):
        train()
        with phase("log"): time.sleep(0.01)
    train()
    found = metrics()
    assert found["laggard/steps"] == count + 1, found
    assert 0.005 < found["laggard/logging_seconds"] <= found["laggard/step_seconds"], found
    assert all(isinstance(value, float) and name.startswith("laggard/") for name, value in found.items())
""")
    assert len(steps) == 8, "the script came to its end, with all that it asserts"
