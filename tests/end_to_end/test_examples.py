"""Each example that the help of a command shows, run where what it names is there.

Those of SLURM's jobs run in tests/slurm/test_suspects.py, on a real cluster."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.paths import DATA, REPOSITORY

from laggard.commands import COMMANDS, PARTS, examples
from laggard.nccl.tuner import COLLECTIVES

pytestmark = pytest.mark.slow
IN_SLURM = ("sbatch --exclude", "laggard confirm", "laggard exclude")
OF_A_JOB = (
    "laggard locate",
    "laggard top",
    "laggard stacks",
    "laggard incidents",
    "laggard recommend",
    "laggard exclude",
)
FIRST = ("laggard healthcheck record", "laggard run")
"""They make what others read."""
ENDLESS = ("laggard top --interval", "laggard agent --web", "laggard collector --target")
STATUSES = {
    "laggard healthcheck": (0, 1, 2),  # as this machine is
    "laggard healthcheck record": (0,),
    "laggard diagnose": (1,),
    "laggard locate": (1,),
    "laggard top": (1,),
    "laggard incidents": (1,),  # one is open
    "laggard collector mcp": (0, 2),  # 2: without the extra
    "laggard tune nccl": (2,),  # no GPU is there whose collectives it could measure
    "laggard ring --seconds": (0, 2),  # without GPUs its processes take each other's time
}
"""What an example may end with, by how it begins; others end with 0."""
STAND_IN = REPOSITORY / "tests" / "support" / "nccl_tests.py"
COMMAND = f"{sys.executable} -S -E {STAND_IN} {{test}} -b {{bytes}} -e {{bytes}}"
TRAINING = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Model(torch.nn.Linear):
    def forward(self, batch):
        time.sleep(0.1 if dist.get_rank() == 1 else 0.005)
        return super().forward(batch)

if "RANK" not in os.environ:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo")
model = DistributedDataParallel(Model(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(int(os.environ.get("STEPS", "60"))):
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def shown() -> list[str]:
    lines = [line for command in (*COMMANDS, *PARTS) for line in examples(command.name) if not line.startswith("#")]
    return [line for line in dict.fromkeys(lines) if not line.startswith(IN_SLURM)]


def statuses_of(line: str) -> tuple[int, ...]:
    longest = max((each for each in STATUSES if line.startswith(each)), key=len, default="")
    return STATUSES.get(longest, (0,))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are that the examples name."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}')
    row = "{},0,18446744073709551615,ring,simple,0,-1,-1,-1,-1\n"
    (tmp_path / "table.csv").write_text("".join(map(row.format, COLLECTIVES)))
    shutil.copy(DATA / "job_logs" / "cuda_assert.log", tmp_path / "train.log")
    shutil.copy(DATA / "tables" / "pmbs25_model2_step2.csv", tmp_path / "runs.csv")
    for name, text in (("agent", "node: n1\n"), ("collector", "targets: [n1]\n"), ("controller", "taint: 'off'\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
    for name in (".local/share/bash-completion/completions", ".config/fish/completions", "ranks"):
        (tmp_path / name).mkdir(parents=True)
    own = {"HOME": tmp_path, "LAGGARD_RANK_DIR": tmp_path / "ranks", "LAGGARD_NODE": "n1", "OMP_NUM_THREADS": 1}
    for name, value in own.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


def check(folder: Path, lines: Iterable[str], before: str = "", after: str = "") -> None:
    """Runs the lines one after the other in a network of their own, and compares how each ends."""
    script = ["ip link set lo up", before]
    for number, line in enumerate(lines):
        command = f"timeout --preserve-status -s INT 6 {line}" if line.startswith(ENDLESS) else line
        script += [f"( {command} ) >{number}.out 2>&1 </dev/null", f"echo $? {shlex.quote(line)} >>ended"]
    words = ("unshare", "--net", "bash", "-c", "\n".join((*script, after)))
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=540)
    ended = (folder / "ended").read_text().splitlines() if (folder / "ended").exists() else []
    assert len(ended) == number + 1, done.stderr
    wrong = []
    for number, told in enumerate(ended):
        status, _, line = told.partition(" ")
        said = (folder / f"{number}.out").read_text()
        if int(status) not in statuses_of(line) or "Traceback" in said:
            wrong.append(f"{line}: {status}\n{said[-2000:]}")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
def test_each_example_that_reads_files_or_this_machine(folder: Path) -> None:
    lines = [line for line in shown() if not line.startswith(OF_A_JOB) or "--trace" in line or "ds_config" in line]
    two = "--rdzv-endpoint n1:29400 --nnodes 2 --node-rank 0"
    assert any(two in line for line in lines)
    here = two.replace("n1", "127.0.0.1")
    lines = [line.replace(two, f"{here.replace('rank 0', 'rank 1')} & laggard ring {here}") for line in lines]
    flags = "--transport roce --nodes 2 --messages all_reduce:64M --trials 60 --deadline 20 --study study.db"
    before = f"laggard tune nccl --command {shlex.quote(COMMAND)} {flags}"
    check(folder, sorted(lines, key=lambda line: not line.startswith(FIRST)), before)
    assert (folder / ".config/fish/completions/laggard.fish").stat().st_size > 1000
    assert (folder / "answer.html").exists() and (folder / "dashboards" / "laggard-job.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
def test_each_example_that_asks_about_a_running_job(folder: Path) -> None:
    files = ("--trace", "ds_config")
    lines = [line for line in shown() if line.startswith(OF_A_JOB) and not any(name in line for name in files)]
    before = """
    laggard agent & laggard collector --target localhost &
    STEPS=100000 laggard run torchrun --nproc-per-node 4 --no-python python train.py &
    until laggard locate 2>/dev/null | grep -q 'Rank 1 .* slow'; do sleep 0.5; done
    """
    check(folder, [line.replace("n17", "n1") for line in lines], before, "kill $(jobs -p); wait")
