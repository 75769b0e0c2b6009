"""What a collector takes that knows a cluster from a Prometheus or a VictoriaMetrics alone: 2,000 nodes of 8 ranks, a
slow rank among them.

    collector_prometheus.py [--nodes 2000] [--jobs 1] [--store prometheus|victoria-metrics]

A real Prometheus answers from blocks that promtool has made, some 110 KiB of memory a rank, of 32,768 ranks at once;
into a real VictoriaMetrics the samples are imported. For the collector it is always the moment of the last samples, so
that the jobs are running however long that took. A look is what the collector asks between two pauses, of 60 s by
default. Memory is the most that it took.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from common.figures import Figure, quartiles, show, single
from common.refused import need

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.prometheus_series import RANKS_OF_NODE, Job, import_series, make_blocks, prometheus, victoria_metrics

MINUTE = 60.0
LOOKS = 10
QUIET_SECONDS = 4.0
"""The time without a query after which a look is over."""

VERDICT_SECONDS = 300.0
BUDGET_SECONDS = 30.0
MIB = 1 << 20

AT_MOMENT = """
import sys
from laggard.collector.prometheus.client import Prometheus
from laggard.cli import main

moment, at = float(sys.argv.pop(1)), Prometheus.at
Prometheus.at = lambda self, query, when: at(self, query, moment if when is None else when)
sys.exit(main())
"""
"""`laggard`, for which now is the moment that is its first word."""


class Asked(NamedTuple):
    """What a store has answered so far: queries, and bytes to whoever it was but this program."""

    queries: int
    sent: float


class Store:
    """A real store with the jobs' series. `end`: when the last of them are, in Unix seconds."""

    def __init__(self, url: str, process: psutil.Process, end: float) -> None:
        self.url, self.process, self.end = url, process, end
        self._read = 0

    def asked(self) -> Asked:
        """By the store's own metrics, whose bytes do not count."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=MINUTE) as answer:
            body = answer.read()
        text = body.decode()
        queries = _sum(text, r'(?:prometheus|vm)_http_requests_total\{.*"/api/v1/query(?:_range)?".*\}')
        sent = _sum(text, r'prometheus_http_response_size_bytes_sum\{handler="/api/v1/query(?:_range)?"\}')
        others = _sum(text, r'vm_tcplistener_written_bytes_total\{name="http".*\}') - self._read
        self._read += len(body)
        return Asked(round(queries), sent or others)


def _sum(metrics: str, name: str) -> float:
    return sum(float(found[1]) for found in re.finditer(rf"^{name} (\S+)$", metrics, re.MULTILINE))


def jobs_of(nodes: int, jobs: int) -> list[Job]:
    """So many jobs of equal size on the nodes; the first has a slow rank."""
    ranks = nodes * RANKS_OF_NODE // jobs
    slow = {0: (ranks // 3,)}
    return [Job(ranks, slow=slow.get(n, ()), job_id=f"train-{n}", seed=n) for n in range(jobs)]


@contextlib.contextmanager
def filled(kind: str, jobs: Sequence[Job], folder: Path) -> Iterator[Store]:
    end = round(time.time())
    if kind == "prometheus":
        with prometheus(make_blocks(jobs, end, folder)) as (url, process):
            yield Store(url, psutil.Process(process.pid), end)
        return
    with victoria_metrics(folder / "vm") as (url, process):
        import_series(jobs, end, url)
        yield Store(url, psutil.Process(process.pid), end)


@contextlib.contextmanager
def collector(store: Store, folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    config = folder / "collector.yaml"
    settings = {"targets": [], "prometheus": store.url, "listen_address": "127.0.0.1:0"}
    config.write_text(json.dumps(settings | {"incidents_database": str(folder / "incidents.sqlite")}))
    command = [sys.executable, "-c", AT_MOMENT, str(store.end), "collector", "--config", str(config)]
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


def measure(kind: str, nodes: int, jobs: int, rest: float) -> list[Figure]:
    made = jobs_of(nodes, jobs)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return watched(stack.enter_context(filled(kind, made, folder)), list(made[0].slow), folder, rest)


def watched(store: Store, slow: list[int], folder: Path, rest: float) -> list[Figure]:
    """The figures of a collector that begins to watch the store, whose first job has the slow ranks. `rest`: seconds
    for which it is measured between two looks."""
    with contextlib.ExitStack() as stack:
        asked, theirs = store.asked(), _cpu(store.process)
        process, address = stack.enter_context(collector(store, folder))
        began, own = time.monotonic(), _cpu(process)
        verdict = _until_told(address, slow)
        look = _until_quiet(store) - began
        own, theirs = _cpu(process) - own, _cpu(store.process) - theirs
        after = store.asked()
        answers = [_timed(f"{address}/api/v1/location?job=train-0") for _ in range(LOOKS)]
        resting = _cpu(process)
        time.sleep(rest)
        resting = 100 * (_cpu(process) - resting) / rest
        most, served = _peak(process), store.process.memory_info().rss / MIB
    return [
        single("the verdict after the start", verdict, "s", BUDGET_SECONDS),
        single("a look", look, "s"),
        single("queries of a look", after.queries - asked.queries, ""),
        single("answers of a look", (after.sent - asked.sent) / 1e6, "MB"),
        single("CPU time of a look", own, "s"),
        single("CPU time of the store for it", theirs, "s"),
        single("CPU between looks, of a core", resting, "%"),
        single("the most resident memory", most, "MiB"),
        single("resident memory of the store", served, "MiB"),
        quartiles("an answer (/api/v1/location)", answers, "s", 1.0),
    ]


def _until_told(address: str, slow: list[int]) -> float:
    """Seconds until the verdict names the slow rank."""
    began = time.monotonic()
    while _culprits(address) != [slow]:
        if time.monotonic() - began > VERDICT_SECONDS:
            raise SystemExit(f"no verdict in {VERDICT_SECONDS:.0f} s")
        time.sleep(0.25)
    return time.monotonic() - began


def _until_quiet(store: Store) -> float:
    """When the last query of the look was seen to be over (time.monotonic())."""
    seen = store.asked().queries
    last = time.monotonic()
    while time.monotonic() - last < QUIET_SECONDS:
        time.sleep(1.0)
        if (now := store.asked().queries) != seen:
            seen, last = now, time.monotonic()
    return last


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", choices=("prometheus", "victoria-metrics"), default="prometheus")
    parser.add_argument("--rest", type=float, default=30.0, help="seconds between two looks for which is measured")
    options = parser.parse_args()
    need(*(("prometheus", "promtool") if options.store == "prometheus" else ("victoria-metrics",)))
    jobs = f"{options.jobs} job{'s' if options.jobs > 1 else ''}"
    title = f"collector, {options.nodes} nodes of {RANKS_OF_NODE} ranks through {options.store}, {jobs}"
    return 0 if show(title, measure(options.store, options.nodes, options.jobs, options.rest)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
