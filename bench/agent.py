"""What the agent costs its node: with eight ranks that train, scraped by Prometheus and by a collector.

Memory and CPU time are those of the agent and its prober together. One round of probes falls into the window of 30 s;
in production there is one a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
from figures import Figure, quartiles, show

RANKS = 8
SCRAPES = 15
MIB = 1 << 20

WRITER = """
import sys, time
from laggard.rankfile import Lane, RankFileWriter
identity = dict(job_id="bench", rank=int(sys.argv[2]), local_rank=int(sys.argv[2]), world_size=8, node="n0",
                gpu="GPU-00000000-0000-0000-0000-000000000000", attempt=0,
                wall_ns=time.time_ns(), monotonic_ns=time.perf_counter_ns())
writer = RankFileWriter(sys.argv[1], identity)
for number in range(10):
    writer.add_lane(Lane("all_reduce", f"role{number}", f"role{number}:0-7"))
for step in range(1 << 40):
    now = time.perf_counter_ns()
    writer.write_step(step, now - 100_000_000, now, *[20_000_000] * 5, 0)
    writer.write_counters([step] * 12, [step] * 30)
    writer.write_collectives(step, [step] * 5 * 64)
    time.sleep(0 if step < 1400 else 0.1)
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory, _ranks(directory), _agent(directory, seconds) as (agent, url):
        figures = _figures(agent, url, seconds)
    return 0 if show(f"agent, {RANKS} ranks", figures) else 1


def _figures(agent: psutil.Process, url: str, seconds: float) -> list[Figure]:
    processes = [agent, *agent.children()]
    share = _share_of_a_core(processes, url, seconds)
    scrapes = [_timed(f"{url}/metrics") * 1e3 for _ in range(SCRAPES)]
    series = len([line for line in _get(f"{url}/metrics").decode().splitlines() if not line.startswith("#")])
    usual = _memory(processes)
    full = [_timed(f"{url}/api/v1/ranks?since=0") * 1e3 for _ in range(SCRAPES)]
    after = _memory(processes)
    return [
        _single("private memory", usual["uss"], "MiB", 40),
        _single("resident memory", usual["rss"], "MiB", 56),
        _single("proportional memory", usual["pss"], "MiB"),
        _single("private memory, after responses with full rings", after["uss"], "MiB"),
        _single("share of a core", share * 100, "%", 0.5),
        quartiles("scrape", scrapes, "ms", 20),
        quartiles("every step in the rings (/api/v1/ranks?since=0)", full, "ms"),
        _single("series", series, "", 500),
    ]


def _share_of_a_core(processes: list[psutil.Process], url: str, seconds: float) -> float:
    """Measures the CPU time with a scrape every 15 s, and a collector that asks for new steps every 5 s."""
    since = json.loads(_get(f"{url}/api/v1/ranks?since=0"))["next"]
    before, began = _cpu_seconds(processes), time.monotonic()
    for tick in range(round(seconds / 5)):
        time.sleep(max(0.0, began + 5 * tick - time.monotonic()))
        since = json.loads(_get(f"{url}/api/v1/ranks?since={since}"))["next"]
        if tick % 3 == 0:
            _get(f"{url}/metrics")
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return (_cpu_seconds(processes) - before) / (time.monotonic() - began)


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    """Sums CPU time, including that of children that have ended, which are the probes."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def _memory(processes: list[psutil.Process]) -> dict[str, float]:
    infos = [process.memory_full_info() for process in processes]
    return {kind: sum(getattr(info, kind) for info in infos) / MIB for kind in ("uss", "rss", "pss")}


def _single(name: str, value: float, unit: str, budget: float | None = None) -> Figure:
    return Figure(name, value, unit, value, value, budget)


def _timed(url: str) -> float:
    began = time.perf_counter()
    _get(url)
    return time.perf_counter() - began


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body


@contextlib.contextmanager
def _ranks(directory: str) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", WRITER, directory, str(rank)]) for rank in range(RANKS)]
    try:
        time.sleep(2.0)  # their rings fill
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _agent(directory: str, seconds: float) -> Iterator[tuple[psutil.Process, str]]:
    config = Path(directory, "agent.yaml")
    # So that every scrape reads the files, as in production, where scrapes are 15 s apart.
    config.write_text(f"probe_interval_seconds: {seconds}\nrank_interval_seconds: 0.001\n")
    command = [sys.executable, "-m", "laggard", "agent", "--config", str(config), "--rank-dir", directory]
    process = subprocess.Popen([*command, "--web.listen-address", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        while b"first round" in _get(f"{found[0]}/api/v1/report"):
            time.sleep(0.1)
        yield psutil.Process(process.pid), found[0]
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
