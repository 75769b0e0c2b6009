"""Measures `laggard locate --prometheus` on a large job in a real Prometheus: time, CPU time on both sides, memory, and
how many queries that takes.

    prometheus.py [RANKS] [--store prometheus|victoria-metrics]

promtool makes the series, once, in memory: some 80 KiB for each rank, so that a small machine measures fewer ranks.
Into a VictoriaMetrics its vmctl copies them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from common.figures import Figure, quartiles, show, single
from common.refused import need

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.prometheus_series import Job, copy_blocks, make_blocks, prometheus, victoria_metrics

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


@contextlib.contextmanager
def filled(store: str, blocks: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The store with the series of the blocks: its URL and its process."""
    if store == "prometheus":
        with prometheus(blocks) as found:
            yield found
        return
    with victoria_metrics(blocks.parent / "vm") as (url, process):
        copy_blocks(blocks, url)
        time.sleep(30)  # until all can be found, and what came last is merged
        yield url, process


def queries(url: str) -> int:
    """The number of queries that the server has answered: Prometheus and VictoriaMetrics count under other names."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    counted = re.compile(r'(?:prometheus|vm)_http_requests_total\{.*"/api/v1/query(?:_range)?".*\} (\d+)')
    return sum(int(found[1]) for line in lines if (found := counted.fullmatch(line)))


def measure(ranks: int, store: str) -> list[Figure]:
    slow = ranks // 3
    end = round(time.time() - 7200.0)
    with tempfile.TemporaryDirectory() as folder:
        data = make_blocks([Job(ranks, slow=(slow,))], end, Path(folder))
        with filled(store, data) as (url, process):
            server = psutil.Process(process.pid)
            ask(url, end, slow, server)
            before = queries(url)
            runs = [ask(url, end, slow, server) for _ in range(REPEATS)]
            asked = (queries(url) - before) / REPEATS
            served = server.memory_info().rss / 2**20
    name = {"prometheus": "Prometheus", "victoria-metrics": "VictoriaMetrics"}[store]
    figures = [
        quartiles("from the command to the verdict", [run.seconds for run in runs], "s", BUDGET_SECONDS),
        quartiles("CPU time of laggard", [run.own_cpu for run in runs], "s"),
        quartiles(f"CPU time of {name}", [run.prometheus_cpu for run in runs], "s"),
        quartiles("memory of laggard", [run.memory for run in runs], "MiB"),
        single(f"memory of {name}", served, "MiB"),
        single("queries a verdict", asked, ""),
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int, nargs="?")
    parser.add_argument("--store", choices=("prometheus", "victoria-metrics"), default="prometheus")
    options = parser.parse_args()
    need("prometheus", "promtool", *(("victoria-metrics", "vmctl") if options.store == "victoria-metrics" else ()))
    room = psutil.virtual_memory().available
    ranks = options.ranks or next((n for n in SIZES if n * BYTES_OF_RANK < room), 1024)
    title = f"locate --prometheus, {options.store}, {ranks} ranks, one of them slow"
    return 0 if show(title, measure(ranks, options.store)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
