"""What the agent costs its node: with eight ranks that train, eight GPUs and ten NICs (recorded ones), scraped by
Prometheus and by a collector.

    agent.py [--seconds 30] [--bare]      --bare: this machine as it is, without GPUs; needs no root and no gcc

Memory and CPU time are those of the agent and its prober together. One round of probes falls into the window of 30 s;
in production there is one a minute.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from common.figures import Figure, quartiles, show, single
from common.recorded_node import RecordedNode

RANKS = 8
SCRAPES = 15
Start = Callable[..., subprocess.Popen[Any]]
MIB = 1 << 20

WRITER = """
import sys, time
from laggard.rankfile import Lane
from laggard.rankfile.writer import RankFileWriter
identity = dict(job_id="bench", rank=int(sys.argv[2]), local_rank=int(sys.argv[2]), world_size=8, node="n0",
                gpu="GPU-00000000-0000-0000-0000-000000000000", attempt=0,
                wall_ns=time.time_ns(), monotonic_ns=time.perf_counter_ns())
writer = RankFileWriter(sys.argv[1], identity)
for number in range(10):
    writer.add_lane(Lane("all_reduce", f"role{number}", f"role{number}:0-7"))
for step in range(1 << 40):
    now = time.perf_counter_ns()
    writer.write_step(step, now - 100_000_000, now, *[10_000_000] * 9, 0, 4096)
    writer.write_counters([step] * 17, [step] * 30)
    writer.write_collectives(step, [step] * 5 * 64)
    time.sleep(0 if step < 1400 else 0.1)
"""


class Daemon(NamedTuple):
    """`processes`: its own and its children. `url` of its metrics."""

    processes: list[psutil.Process]
    url: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _ranks(f"{folder}/ranks"):
        start: Start = subprocess.Popen if options.bare else RecordedNode(Path(folder)).start
        with _agent(folder, options.seconds, start) as (agent, found):
            figures = _figures(agent, options.seconds)
    where = "this machine" if options.bare else "8 GPUs, 10 NICs"
    print(f"findings on the node: {found or 'none'}")
    return 0 if show(f"agent, {RANKS} ranks, {where}", figures) else 1


def _figures(agent: Daemon, seconds: float) -> list[Figure]:
    share = _share_of_a_core(agent, seconds)
    usual = _memory(agent.processes)
    base = agent.url.removesuffix("/metrics")
    figures = [
        single("private memory", usual["uss"], "MiB", 40),
        single("resident memory", usual["rss"], "MiB", 56),
        single("proportional memory", usual["pss"], "MiB"),
        single("share of a core", share * 100, "%", 0.5),
        quartiles("scrape", _scrapes(agent.url), "ms", 20),
        single("series", _series(agent.url), "", 500),
    ]
    figures.append(quartiles("every step in the rings (/api/v1/ranks?since=0)",
                             _scrapes(f"{base}/api/v1/ranks?since=0"), "ms"))  # fmt: skip
    figures.append(single("private memory, after responses with full rings", _memory(agent.processes)["uss"], "MiB"))
    return figures


def _scrapes(url: str) -> list[float]:
    """Milliseconds."""
    return [_timed(url) * 1e3 for _ in range(SCRAPES)]


def _series(url: str) -> int:
    return len([line for line in _get(url).decode().splitlines() if not line.startswith("#")])


def _share_of_a_core(agent: Daemon, seconds: float) -> float:
    """Measures the CPU time with a scrape every 15 s, and a collector that asks for new steps every 5 s."""
    base = agent.url.removesuffix("/metrics")
    since = json.loads(_get(f"{base}/api/v1/ranks?since=0"))["next"]
    before, began = _cpu_seconds(agent.processes), time.monotonic()
    for tick in range(round(seconds / 5)):
        time.sleep(max(0.0, began + 5 * tick - time.monotonic()))
        since = json.loads(_get(f"{base}/api/v1/ranks?since={since}"))["next"]
        if tick % 3 == 0:
            _get(agent.url)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return (_cpu_seconds(agent.processes) - before) / (time.monotonic() - began)


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    """Sums CPU time, including that of children that have ended, which are the probes."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def _memory(processes: list[psutil.Process]) -> dict[str, float]:
    infos = [process.memory_full_info() for process in processes]
    return {kind: sum(getattr(info, kind) for info in infos) / MIB for kind in ("uss", "rss", "pss")}


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
    Path(directory).mkdir()
    started = [subprocess.Popen([sys.executable, "-c", WRITER, directory, str(rank)]) for rank in range(RANKS)]
    try:
        time.sleep(2.0)  # their rings fill
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _agent(folder: str, seconds: float, start: Start) -> Iterator[tuple[Daemon, str]]:
    """The agent after its first round, and the codes that it found."""
    config = Path(folder, "agent.yaml")
    # So that every scrape reads the files, as in production, where scrapes are 15 s apart.
    config.write_text(f"probe_interval_seconds: {seconds}\nrank_interval_seconds: 0.001\n")
    command = [sys.executable, "-m", "laggard", "agent", "--config", str(config), "--rank-dir", f"{folder}/ranks"]
    process = start([*command, "--web.listen-address", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        while b"first round" in (body := _get(f"{found[0]}/api/v1/report")):
            time.sleep(0.1)
        codes = sorted({finding["code"] for finding in json.loads(body)["findings"]})
        agent = psutil.Process(process.pid)
        yield Daemon([agent, *agent.children()], f"{found[0]}/metrics"), ", ".join(codes)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
