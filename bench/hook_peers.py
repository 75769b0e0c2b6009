"""What watching costs a whole training step: laggard, TraceML and torch.profiler, each in a process of its own.

In each round every tool has one process, in turn, so that a machine that slows down slows all. A figure is the median
step of the watched run less that of the bare run of the same round; and the same for the mean step, which includes the
cost of background threads. TraceML (PyPI: traceml-ai) is no dependency: it is measured where TRACEML=DIR names a folder
that holds it (`pip install --no-deps --target DIR traceml-ai`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common.figures import MAX_DISTURBANCE, Figure, quartiles, show
from common.scratch import scratch

TRAINING = Path(__file__).parent / "trainings" / "small_training.py"
BUDGET_US = 20.0
TRACEML_PORT = "29767"


def run(watcher: str, steps: int, environ: dict[str, str]) -> dict[str, float]:
    """Median and mean step in microseconds and private memory in MiB of one run."""
    command = [sys.executable, str(TRAINING), "--watcher", watcher, "--steps", str(steps)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    line = next((line for line in ended.stdout.splitlines() if line.startswith("{")), None)
    if line is None:
        raise SystemExit(f"{watcher}: no result:\n{ended.stderr[-2000:]}")
    if "without tracing" in ended.stderr:
        raise SystemExit(f"{watcher} did not watch:\n{ended.stderr[-500:]}")
    result = json.loads(line)
    times = result["step_us"]
    return {"us": statistics.median(times), "mean": statistics.fmean(times), "mib": result["private_bytes"] / 2**20}


@contextlib.contextmanager
def traceml(folder: str) -> Iterator[dict[str, str]]:
    """Runs TraceML's aggregator, without which it watches nothing. Yields the environment that its worker needs."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.environ.get("TRACEML", ""),
        "TRACEML_AGGREGATOR_PORT": TRACEML_PORT,
        "TRACEML_RUN_NAME": "bench",
        "TRACEML_LOGS_DIR": folder,
    }
    command = [sys.executable, "-m", "traceml_ai.launcher.cli", "serve", "--aggregator-port", TRACEML_PORT]
    words = ["--run-name", "bench", "--logs-dir", folder]
    server = subprocess.Popen([*command, *words], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(5)
        yield environ
    finally:
        server.terminate()
        server.wait(30)


def compare(rounds: int, steps: int, folder: str, ranks: str) -> list[Figure]:
    watchers = ["laggard", "profiler", *(["traceml"] if os.environ.get("TRACEML") else [])]
    if "traceml" not in watchers:
        print("TraceML is not here (TRACEML=DIR names its folder): its row is left out", file=sys.stderr)
    plain = {**os.environ, "LAGGARD_RANK_DIR": ranks}
    found: dict[str, list[dict[str, float]]] = {watcher: [] for watcher in ("none", *watchers)}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        found["none"].append(run("none", steps, plain))
        for watcher in watchers:
            with traceml(folder) if watcher == "traceml" else contextlib.nullcontext(plain) as environ:
                found[watcher].append(run(watcher, steps, environ))
    return _figures(found)


def _figures(found: dict[str, list[dict[str, float]]]) -> list[Figure]:
    names = {"laggard": "laggard", "profiler": "torch.profiler, CPU activities", "traceml": "TraceML"}
    kept = _undisturbed_rounds([each["us"] for each in found["none"]])
    found = {watcher: [runs[number] for number in kept] for watcher, runs in found.items()}
    bare = found["none"]
    print(f"{len(kept)} rounds counted: in the others the machine was slowed", file=sys.stderr)
    rows = [quartiles("a step, bare", [one["us"] for one in bare], "us")]
    for watcher, runs in found.items():
        if watcher != "none":
            added = [one["us"] - none["us"] for one, none in zip(runs, bare, strict=True)]
            means = [one["mean"] - none["mean"] for one, none in zip(runs, bare, strict=True)]
            memory = [one["mib"] - none["mib"] for one, none in zip(runs, bare, strict=True)]
            rows.append(quartiles(f"a step, added by {names[watcher]}", added, "us", _budget(watcher)))
            rows.append(quartiles(f"a step in the mean, added by {names[watcher]}", means, "us"))
            rows.append(quartiles(f"private memory, added by {names[watcher]}", memory, "MiB"))
    return rows


def _undisturbed_rounds(bare: list[float]) -> list[int]:
    """The rounds in which nothing else slowed the machine, judged by the bare run alone; two at least."""
    allowed = max(MAX_DISTURBANCE * min(bare), sorted(bare)[1])
    return [number for number, each in enumerate(bare) if each <= allowed]


def _budget(watcher: str) -> float | None:
    return BUDGET_US if watcher == "laggard" else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=scratch()) as ranks:
        figures = compare(max(2, options.rounds), options.steps, folder, ranks)
    return 0 if show("What watching costs a training step (one process, CPU)", figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
