"""Measures `laggard locate --prometheus` on a large job in a real Prometheus: time, CPU time on both sides, memory.

promtool makes the series, once, in memory: some 80 KiB for each rank, so that a small machine measures fewer ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from figures import Figure, quartiles, show
from prometheus_series import Job, make_blocks, prometheus

SIZES = (131_072, 16_384)
BYTES_OF_RANK = 90 << 10
BUDGET_SECONDS = 10.0
REPEATS = 5


class Run(NamedTuple):
    """Seconds, and laggard's memory at its peak in MiB."""

    seconds: float
    memory: float
    own_cpu: float
    prometheus_cpu: float


def measure(ranks: int) -> list[Figure]:
    slow = ranks // 3
    end = round(time.time() - 7200.0)
    with tempfile.TemporaryDirectory() as folder:
        data = make_blocks([Job(ranks, slow=(slow,))], end, Path(folder))
        with prometheus(data) as (url, process):
            server = psutil.Process(process.pid)
            runs = [ask(url, end, slow, server) for _ in range(REPEATS + 1)][1:]
            served = server.memory_info().rss / 2**20
    figures = [
        quartiles("from the command to the verdict", [run.seconds for run in runs], "s", BUDGET_SECONDS),
        quartiles("CPU time of laggard", [run.own_cpu for run in runs], "s"),
        quartiles("CPU time of Prometheus", [run.prometheus_cpu for run in runs], "s"),
        quartiles("memory of laggard", [run.memory for run in runs], "MiB"),
        Figure("memory of Prometheus", served, "MiB", served, served),
    ]
    return figures


def ask(url: str, end: float, slow: int, server: psutil.Process) -> Run:
    command = [sys.executable, "-m", "laggard", "locate", "--prometheus", url, "--at", str(end), "--format", "json"]
    of_server, began = sum(server.cpu_times()[:2]), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout
    answer = process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = 1  # it is over: wait4 has told more than wait would
    assert [it["ranks"] for it in json.loads(answer)["culprits"]] == [[slow]], answer
    taken = sum(server.cpu_times()[:2]) - of_server
    return Run(seconds, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, taken)


def main() -> int:
    room = psutil.virtual_memory().available
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else next((n for n in SIZES if n * BYTES_OF_RANK < room), 1024)
    return 0 if show(f"locate --prometheus, {ranks} ranks, one of them slow", measure(ranks)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
