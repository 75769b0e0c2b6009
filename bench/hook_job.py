"""A real job of four ranks on gloo with and without the hook, in interleaved pairs: the difference of a step's time
with its confidence interval, and what the hook takes of memory.

The ranks train with DDP; a run's figure is the mean over its ranks of the mean of the middle
eight tenths of their steps. The interval is the bootstrap's over the pairs. A hook that costs less than the noise has
an interval around zero.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.figures import Figure, quartiles, show

TRAINING = Path(__file__).parent / "trainings" / "small_training.py"
RANKS = 4
RESAMPLES = 4000


def run(watcher: str, steps: int, directory: str) -> tuple[float, float]:
    """A step's time in microseconds and a rank's private memory in MiB, means over the ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(TRAINING), "--watcher", watcher, "--steps", str(steps)]
    world = {
        **os.environ,
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "LAGGARD_RANK_DIR": directory,
        "LAGGARD_JOB_ID": "bench",
    }
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen(
            command, env={**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=pipe, stderr=pipe, text=True
        )
        for rank in range(RANKS)
    ]
    results = []
    for rank in ranks:
        out, errors = rank.communicate(timeout=300)
        line = next((line for line in out.splitlines() if line.startswith("{")), None)
        if line is None:
            raise SystemExit(f"a rank ended with {rank.returncode}:\n{errors[-2000:]}")
        results.append(json.loads(line))
    return (
        statistics.fmean(middle(one["step_us"]) for one in results),
        statistics.fmean(one["private_bytes"] for one in results) / 2**20,
    )


def middle(steps: Sequence[float]) -> float:
    """The mean without the tenth that is shortest and the tenth that is longest."""
    cut = len(steps) // 10
    return statistics.fmean(sorted(steps)[cut : len(steps) - cut])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the bootstrap's means."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    bare, hooked = [], []
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        for number in range(max(3, options.pairs)):
            print(f"pair {number + 1} of {options.pairs}", file=sys.stderr)
            order = ("none", "laggard") if number % 2 else ("laggard", "none")
            results = {watcher: run(watcher, options.steps, directory) for watcher in order}
            bare.append(results["none"])
            hooked.append(results["laggard"])
    added = [with_it[0] - without[0] for with_it, without in zip(hooked, bare, strict=True)]
    more = [with_it[1] - without[1] for with_it, without in zip(hooked, bare, strict=True)]
    low, high = interval(added)
    figures = [
        quartiles("a step, bare", [one[0] for one in bare], "us"),
        quartiles("a step, hooked", [one[0] for one in hooked], "us"),
        Figure("a step, mean difference and its 95 % interval", statistics.fmean(added), "us", low, high),
        quartiles("private memory of a rank, added", more, "MiB"),
    ]
    show(f"A job of {RANKS} ranks on gloo (DDP), with and without the hook", figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
