"""Whether a training is recorded whatever its script imports before torch: `make imports-check`.

Packages that training scripts import are imported one by one, each in a fresh process under `laggard run`, before
torch; then pairs of them, drawn at random. Each process then trains a few steps, and its recording has to hold them.
Runs in the environment .venv-imports, which scripts/setup-imports makes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = REPOSITORY / "scripts" / "imports_check.txt"
STEPS: Final = 3
SECONDS: Final = 600.0

TRAINING: Final = f"""
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({STEPS}):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("TRAINED", torch.__version__)
"""

QUIET: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
}


class Package(NamedTuple):
    """What is imported, and the distribution that has it."""

    module: str
    distribution: str


class Result(NamedTuple):
    """`why`: why it does not count as recorded; empty where it does."""

    modules: tuple[str, ...]
    why: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes at once")
    arguments = parser.parse_args()
    packages = _packages()
    pairs = list(itertools.permutations((each.module for each in packages), 2))
    chosen = random.Random(arguments.seed).sample(pairs, min(arguments.pairs, len(pairs)))
    with ThreadPoolExecutor(arguments.workers) as pool:
        alone = list(map(_show_alone, packages, pool.map(_tried, [(each.module,) for each in packages])))
        together = list(map(_show_pair, pool.map(_tried, chosen)))
    for what, results in (("packages", alone), ("pairs", together)):
        print(f"{sum(not each.why for each in results)} of {len(results)} {what}: recorded")
    return int(any(each.why for each in (*alone, *together)))


def _packages() -> list[Package]:
    lines = (line.split() for line in PACKAGES.read_text().splitlines())
    return [Package(words[-1], words[0].partition("[")[0]) for words in lines if words and words[0] != "#"]


def _show_alone(package: Package, result: Result) -> Result:
    """A line for the package, with the version that was tried."""
    try:
        number = version(package.distribution)
    except PackageNotFoundError:
        number = "?"
    print(f"{package.module:24} {number:16} {result.why or 'recorded'}", flush=True)
    return result


def _show_pair(result: Result) -> Result:
    print(f"{' then '.join(result.modules):48} {result.why or 'recorded'}", flush=True)
    return result


def _tried(modules: tuple[str, ...]) -> Result:
    """Trains in a process that imports `modules` before torch."""
    with tempfile.TemporaryDirectory(prefix="laggard-imports-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAINING)
        places = {"LAGGARD_RANK_DIR": f"{folder}/ranks", "LAGGARD_RECORD_DIR": f"{folder}/recording"}
        places |= {"HOME": folder, "TMPDIR": folder, "TORCH_EXTENSIONS_DIR": f"{folder}/extensions"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "laggard", "run", str(script), *modules],
                env={**os.environ, **QUIET, **places},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Result(modules, f"not over after {SECONDS:.0f} s")
        return Result(modules, _why_not(done, Path(folder)))


def _why_not(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    if "TRAINED" not in done.stdout:
        last = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        return f"it does not train: {last[:200]}"
    path = folder / "recording" / "rank-0.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    steps = [record["step"] for record in records if record.get("kind") == "step"]
    if steps != list(range(STEPS)):
        return f"NOT RECORDED: {len(steps)} of {STEPS} steps"
    if not any((folder / "ranks").rglob("*.rank")):
        return "NOT SEEN: no rank file"
    return (
        "laggard says: " + done.stderr.partition("laggard: ")[2].splitlines()[0] if "laggard: " in done.stderr else ""
    )


if __name__ == "__main__":
    sys.exit(main())
