"""What a collector takes that knows a cluster from Prometheus alone: 2,000 nodes of 8 ranks, a slow rank among them.

    collector_prometheus.py [--nodes 2000] [--jobs 1]

promtool makes the series, some 100 KiB of memory a rank, and a real Prometheus answers from them. They end two minutes
ahead of the time at which they are expected to be ready, so that for the collector the jobs are running. It looks once
a minute, as by default. Memory is the most that it took; CPU is of one minute, with one look.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
from figures import Figure, quartiles, show
from prometheus_series import RANKS_OF_NODE, Job, make_blocks, prometheus

MINUTE = 60.0
AHEAD_SECONDS = 2 * MINUTE
TRIAL_RANKS = 1024
LOOKS = 10
TRIES = 3
MIB = 1 << 20


def jobs_of(nodes: int, jobs: int, samples: int) -> list[Job]:
    """So many jobs of equal size on the nodes; the first has a slow rank."""
    ranks = nodes * RANKS_OF_NODE // jobs
    slow = {0: (ranks // 3,)}
    return [Job(ranks, samples=samples, slow=slow.get(n, ()), job_id=f"train-{n}", seed=n) for n in range(jobs)]


def seconds_to_make(ranks: int, samples: int) -> float:
    """What promtool will take about, by what it takes for fewer ranks."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        make_blocks([Job(TRIAL_RANKS, samples=samples)], round(time.time()), Path(folder))
    return 15.0 + 1.4 * (time.monotonic() - began) * ranks / TRIAL_RANKS


@contextlib.contextmanager
def collector(prometheus_url: str, folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    config = folder / "collector.yaml"
    settings = {"targets": [], "prometheus": prometheus_url, "listen_address": "127.0.0.1:0"}
    config.write_text(json.dumps(settings | {"incidents_database": str(folder / "incidents.sqlite")}))
    command = [sys.executable, "-m", "laggard", "collector", "--config", str(config)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        deadline = time.monotonic() + MINUTE
        while not (found := re.search(r"listening on (http://\S+)", (folder / "log").read_text())):
            assert time.monotonic() < deadline and process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        yield psutil.Process(process.pid), found[1]
    finally:
        process.terminate()
        process.wait()


def measure(nodes: int, jobs: int) -> list[Figure]:
    samples = 13 + round(AHEAD_SECONDS / 15)
    made = jobs_of(nodes, jobs, samples)
    slow, size = made[0].slow[0], made[0].ranks
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, end = _made_in_time(made, folder)
        with prometheus(data) as (url, server_process), collector(url, folder) as (process, address):
            server = psutil.Process(server_process.pid)
            began = time.monotonic()
            while _culprits(address) != [[slow]]:
                if time.monotonic() - began > MINUTE:
                    late = time.time() - end
                    raise SystemExit(f"no verdict in a minute, {late:.0f} s after the last sample; {size} ranks a job")
                time.sleep(0.1)
            verdict = time.monotonic() - began
            before = [_cpu(it) for it in (process, server)]
            time.sleep(MINUTE)
            own, theirs = (100 * (_cpu(it) - then) / MINUTE for it, then in zip((process, server), before, strict=True))
            answers = [_timed(f"{address}/api/v1/location?job=train-0") for _ in range(LOOKS)]
            most, served = _peak(process), server.memory_info().rss / MIB
    return [
        _single("the verdict after the start", verdict, "s"),
        _single("CPU, of a core", own, "%", 50.0),
        _single("the most resident memory", most, "MiB"),
        quartiles("an answer (/api/v1/location)", answers, "s", 1.0),
        _single("CPU of Prometheus, of a core", theirs, "%"),
        _single("resident memory of Prometheus", served, "MiB"),
    ]


def _made_in_time(jobs: list[Job], folder: Path) -> tuple[Path, float]:
    """The series, when their last two minutes begin, and their end. Where the machine was busier than expected, they
    are made again, with more time."""
    expected = seconds_to_make(sum(job.ranks for job in jobs), jobs[0].samples)
    for _ in range(TRIES):
        began = time.time()
        end = round(began + expected + AHEAD_SECONDS)
        data = make_blocks(jobs, end, folder)
        took = time.time() - began
        if took <= expected:
            time.sleep(expected - took)
            return data, end
        shutil.rmtree(data)
        print(f"the series took {took:.0f} s, more than the {expected:.0f} expected: once more", file=sys.stderr)
        expected = 1.3 * took
    raise SystemExit("this machine is too busy to make the series in a time that can be foretold")


def _culprits(address: str) -> list[list[int]]:
    with urllib.request.urlopen(f"{address}/api/v1/location?job=train-0", timeout=MINUTE) as answer:
        return [culprit["ranks"] for culprit in json.load(answer)["culprits"]]


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:4]))


def _peak(process: psutil.Process) -> float:
    """MiB: VmHWM of proc(5)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def _timed(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=MINUTE) as answer:
        answer.read()
    return time.perf_counter() - began


def _single(name: str, value: float, unit: str, budget: float | None = None) -> Figure:
    return Figure(name, value, unit, value, value, budget)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    jobs = f"{options.jobs} job{'s' if options.jobs > 1 else ''}"
    title = f"collector, {options.nodes} nodes of {RANKS_OF_NODE} ranks through Prometheus, {jobs}"
    return 0 if show(title, measure(options.nodes, options.jobs)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
