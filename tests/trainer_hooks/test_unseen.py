"""A process that trains and is not seen says so, and leaves a mark; one that does not train says nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.rows import rows
from support.warm import Warm

from laggard.rankfile.unseen import read_mark

pytestmark = pytest.mark.slow  # trainings with torch

SCRIPT = """
import os, sys, threading
import torch, torch.distributed as dist
torch.set_num_threads(1)

def train(*_):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

def initialize():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

def remote(*_):
    from torch.distributed import rpc
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    rpc.init_rpc("only", rank=0, world_size=1)
    rpc.shutdown()

def on_another_thread():
    torch.ones(1, requires_grad=True).backward()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()

def loads():
    data = torch.utils.data.TensorDataset(torch.ones(8, 8))
    list(torch.utils.data.DataLoader(data, num_workers=1))

def starts(act, method):
    torch.multiprocessing.start_processes(act, nprocs=1, start_method=method)

def raises():
    initialize()
    raise ValueError("its configuration")

def fails():
    initialize()
    raise SystemExit(3)

if __name__ == "__main__":
    eval(sys.argv[1])
"""

FRESH = ("initialize()", "train()")
"""Run in Python processes that import torch themselves: the others have it from the start."""


def run(tmp_path: Path, what: str, warm: Warm | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    """`warm`: what starts the process, unless it is one of FRESH."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {
        "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
        "LAGGARD_RECORD_DIR": str(tmp_path / "recording"),
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        **extra,
    }
    words = ["-m", "laggard", "run", str(tmp_path / "script.py"), what]
    if warm is not None and what not in FRESH:
        return warm.run(words, environment)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, env=environment)


def marks(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("*.unseen"))


@rows("hooks/unseen")
def test_a_training_that_is_not_seen_says_so(tmp_path: Path, what: str, said: str, warm_torch: Warm) -> None:
    done = run(tmp_path, what, warm_torch)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("laggard: "))
    assert line.startswith(f"laggard: this process (rank 0) {said}")
    assert re.search("; (call laggard|laggard compares)", line), "what to do"
    seen, recorded = marks(tmp_path)  # in the rank directory, in the recording's folder
    assert recorded.parent == tmp_path / "recording" and seen.parent == tmp_path / "ranks" / str(os.geteuid())
    mark = read_mark(str(seen))
    assert (mark.kind, mark.rank) == ("unseen", 0) and mark.why in line
    assert mark.script == "script.py" or what not in FRESH, "the name by which the process was started"
    located = subprocess.run(
        [sys.executable, "-m", "laggard", "locate", "--trace", tmp_path / "recording", "--format", "json"],
        capture_output=True,
        text=True,
    )
    location = json.loads(located.stdout)
    assert (located.returncode, location["verdict"], location["job_id"]) == (2, "unknown", mark.job_id)
    (note,) = location["notes"]
    assert (note["kind"], note["text"]) == ("unseen", f"1 process trained without being seen: {mark.why}")


@rows("hooks/silent")
def test_what_is_no_training_or_is_seen_says_nothing(tmp_path: Path, what: str, status: int, warm_torch: Warm) -> None:
    done = run(tmp_path, what, warm_torch)
    assert (done.returncode, done.stderr) == (status, "")
    assert marks(tmp_path) == []


def test_a_process_that_a_launcher_started_and_that_an_exception_ended_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "laggard", "run", sys.executable, str(tmp_path / "script.py"), "raises()"]
    environment = {**os.environ, "LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 1 and "ValueError: its configuration" in done.stderr
    assert "laggard: " not in done.stderr and marks(tmp_path) == []


def test_hooks_that_are_off_say_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "initialize()", LAGGARD_OFF="1")
    assert (done.returncode, done.stderr, marks(tmp_path)) == (0, "", [])


@pytest.mark.parametrize("what", ["train()", "initialize()"])
def test_hooks_that_do_not_get_into_torch_say_so(tmp_path: Path, what: str) -> None:
    """As where a version of torch lacks what the hooks look for: here GradScaler's step."""
    (tmp_path / "sitecustomize.py").write_text(
        "from laggard.trainer_hooks.pytorch.training import TorchSteps\n"
        "def _scaled_step(self, original): raise AttributeError('no step')\n"
        "TorchSteps._scaled_step = _scaled_step\n"
    )
    done = run(tmp_path, what, PYTHONPATH=str(tmp_path))
    first, last = done.stderr.splitlines()
    assert first == "laggard: not hooked, the training goes on without it: AttributeError: no step"
    did = "trained" if what == "train()" else "initialized torch.distributed"
    start = (
        f"laggard: this process (rank 0) {did} without being seen: the hooks did not get into torch: AttributeError: "
    )
    assert last.startswith(start)
    assert len(marks(tmp_path)) == 2


def test_a_rank_directory_that_cannot_be_written_costs_no_more_than_the_mark(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("a file")
    (tmp_path / "recording").write_text("a file")
    done = run(tmp_path, "initialize()")
    assert done.returncode == 0
    assert done.stderr.startswith("laggard: ") and "without being seen" in done.stderr
    assert "Traceback" not in done.stderr and marks(tmp_path) == []


def test_a_process_that_has_torch_is_told_of_until_it_is_seen(tmp_path: Path, warm_torch: Warm) -> None:
    looks = "print(sorted(name for _, _, names in os.walk(os.environ['LAGGARD_RANK_DIR']) for name in names))"
    done = run(tmp_path, f"exec({looks!r}), train(), exec({looks!r})", warm_torch)
    before, after = (eval(line) for line in done.stdout.splitlines())
    assert [name.partition(".")[2] for name in before] == ["unseen"]
    assert [name.partition(".")[2] for name in after] == ["rank"]
