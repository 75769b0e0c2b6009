"""What watching costs a whole training step: laggard and torch.profiler, each in a process of its own.

In each round every tool has one process, in turn, so that a machine that slows down slows all. A figure is the median
step of the watched run less that of the bare run of the same round; and the same for the mean step, which includes the
cost of background threads.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common.figures import MAX_DISTURBANCE, Figure, quartiles, show
from common.scratch import scratch

TRAINING = Path(__file__).parent / "trainings" / "small_training.py"
BUDGET_US = 20.0
WATCHERS = {"none": "", "laggard": "laggard", "profiler": "torch.profiler, CPU activities"}
"""What watches, and its name in the table."""


def run(watcher: str, steps: int, environ: dict[str, str]) -> dict[str, float]:
    """Median and mean step in microseconds and private memory in MiB of one run."""
    command = [sys.executable, str(TRAINING), "--watcher", watcher, "--steps", str(steps)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    line = next((line for line in ended.stdout.splitlines() if line.startswith("{")), None)
    if line is None:
        raise SystemExit(f"{watcher}: no result:\n{ended.stderr[-2000:]}")
    result = json.loads(line)
    times = result["step_us"]
    return {"us": statistics.median(times), "mean": statistics.fmean(times), "mib": result["private_bytes"] / 2**20}


def compare(rounds: int, steps: int, ranks: str) -> list[Figure]:
    environ = {**os.environ, "LAGGARD_RANK_DIR": ranks}
    found: dict[str, list[dict[str, float]]] = {watcher: [] for watcher in WATCHERS}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for watcher in WATCHERS:
            found[watcher].append(run(watcher, steps, environ))
    return _figures(found)


def _figures(found: dict[str, list[dict[str, float]]]) -> list[Figure]:
    kept = _undisturbed_rounds([each["us"] for each in found["none"]])
    found = {watcher: [runs[number] for number in kept] for watcher, runs in found.items()}
    bare = found["none"]
    print(f"{len(kept)} rounds counted: in the others the machine was slowed", file=sys.stderr)
    rows = [quartiles("a step, bare", [one["us"] for one in bare], "us")]
    for watcher, runs in found.items():
        if name := WATCHERS[watcher]:
            added = [one["us"] - none["us"] for one, none in zip(runs, bare, strict=True)]
            means = [one["mean"] - none["mean"] for one, none in zip(runs, bare, strict=True)]
            memory = [one["mib"] - none["mib"] for one, none in zip(runs, bare, strict=True)]
            rows.append(quartiles(f"a step, added by {name}", added, "us", BUDGET_US if watcher == "laggard" else None))
            rows.append(quartiles(f"a step in the mean, added by {name}", means, "us"))
            rows.append(quartiles(f"private memory, added by {name}", memory, "MiB"))
    return rows


def _undisturbed_rounds(bare: list[float]) -> list[int]:
    """The rounds in which nothing else slowed the machine, judged by the bare run alone; two at least."""
    allowed = max(MAX_DISTURBANCE * min(bare), sorted(bare)[1])
    return [number for number, each in enumerate(bare) if each <= allowed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=scratch()) as ranks:
        figures = compare(max(2, options.rounds), options.steps, ranks)
    return 0 if show("What watching costs a training step (one process, CPU)", figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
