"""Ranks however they are started: by real launchers, or by the script itself. Each is seen from its first step to its
last."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.rows import rows

pytestmark = [pytest.mark.slow, pytest.mark.apart]  # trainings with torch

STEPS = 12

TRAINING = f"""
import os, sys
import torch, torch.distributed as dist

def train(rank=None, port=None):
    if rank is not None:
        ranks = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        os.environ.update({{name: str(value) for name, value in ranks.items()}})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range({STEPS}):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("fork", "spawn", "forkserver"):
        torch.multiprocessing.start_processes(train, args=(os.environ["PORT"],), nprocs=2, start_method=sys.argv[1])
    else:
        train()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    return path


def start(tmp_path: Path, *words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
        "LAGGARD_RECORD_DIR": str(tmp_path / "recording"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "PORT": str(free_port()),
        **extra,
    }
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path
    )


def assert_both_ranks_are_recorded(tmp_path: Path) -> None:
    for rank in range(2):
        path = tmp_path / "recording" / f"rank-{rank}.jsonl"
        records: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        steps = [record["step"] for record in records if record.get("kind") == "step"]
        assert steps == list(range(STEPS)), f"rank {rank}"
        ended_at = records[-1].pop("at_seconds")
        assert ended_at > 0 and records[-1] == {"kind": "end", "rank": rank, "lost": 0}
    assert len(list((tmp_path / "recording").iterdir())) == 2


@rows("hooks/ways_to_start")
def test_each_rank_is_recorded(words: str, tmp_path: Path, script: Path) -> None:
    (tmp_path / "launch.sh").write_text("#!/bin/sh\nexec python train.py fork")
    (tmp_path / "launch.sh").chmod(0o755)
    done = start(tmp_path, *words.format(port=free_port()).split())  # DeepSpeed's launcher takes 29500 unless told
    assert done.returncode == 0, done.stderr[-4000:]
    assert_both_ranks_are_recorded(tmp_path)


def test_a_started_process_is_a_rank_where_no_collective_of_it_can_be_named(tmp_path: Path, script: Path) -> None:
    """multiprocessing starts it, and DDP makes all its collectives in C++: gloo's before torch 2.12, or any backend's
    without the Flight Recorder."""
    done = start(tmp_path, "laggard", "run", "train.py", "fork", TORCH_FR_BUFFER_SIZE="0")
    assert done.returncode == 0, done.stderr[-4000:]
    assert_both_ranks_are_recorded(tmp_path)


LOOKS_FOR_TORCH = {
    "looks for it": "importlib.util.find_spec('torch'); importlib.util.find_spec('torch.distributed.fsdp')",
    "loads it lazily": "load(importlib.util.LazyLoader(spec.loader))",
    "executes what it found": "load(spec.loader)",
}


@pytest.mark.parametrize("words", ["laggard run train.py fork", "laggard run launch.sh"])
@pytest.mark.parametrize("way", LOOKS_FOR_TORCH)
def test_a_script_that_looks_for_torch_before_it_imports_it(words: str, way: str, tmp_path: Path, script: Path) -> None:
    """As `import datasets` and `import transformers` do."""
    looks = f"""
import importlib.util, sys
spec = importlib.util.find_spec("torch")
def load(loader):
    spec.loader = loader
    sys.modules["torch"] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules["torch"])
if any(name.startswith("laggard.trainer_hooks.s") for name in sys.modules) and "launch" in sys.argv:
    raise SystemExit("hooked before torch was imported")
{LOOKS_FOR_TORCH[way]}
"""
    script.write_text(looks + script.read_text())
    (tmp_path / "launch.sh").write_text("#!/bin/sh\nexec python train.py fork launch")
    (tmp_path / "launch.sh").chmod(0o755)
    done = start(tmp_path, *words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert_both_ranks_are_recorded(tmp_path)


BESIDE_A_RANK = """
import subprocess, sys, torch
from torch.utils.data import DataLoader, Dataset

def train(steps):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

class Trains(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index):
        train(9)
        return index

if __name__ == "__main__":
    train(3)
    list(DataLoader(Trains(), num_workers=1, multiprocessing_context="spawn"))
    subprocess.run([sys.executable, "-c", "import beside; beside.train(9)"], check=True)
"""


def test_what_a_rank_starts_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(BESIDE_A_RANK)
    done = start(tmp_path, "laggard", "run", "beside.py")
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = (tmp_path / "recording").iterdir()
    assert path.read_text().count('"kind": "step"') == 3
    assert len(list((tmp_path / "ranks").rglob("*.rank"))) == 1


def test_lightnings_own_launcher(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(LIGHTNING)
    done = start(tmp_path, "laggard", "run", "train.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert_both_ranks_are_recorded(tmp_path)


LIGHTNING = f"""
import torch, lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _): return self.layer(batch[0]).sum()
    def configure_optimizers(self): return torch.optim.SGD(self.layer.parameters(), lr=0.1)

if __name__ == "__main__":
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones({STEPS} * 8, 8)), batch_size=4)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet).fit(Model(), data)
"""
