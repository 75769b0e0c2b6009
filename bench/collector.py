"""What a collector takes for clusters of 64 to 1,000 agents with 8 ranks each, all in one job with a slow rank.

The agents are one process that answers at as many loopback addresses; it takes time of its own, on the other core. The
verdict's time counts from when the collector listens, with all agents training already.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import psutil
from common.figures import Figure, quartiles, show

from laggard.model import ProbeResult, Report, Verdict
from laggard.wire import encode
from laggard.wire.ranks import RankRow, RanksDocument, StepRow

RANKS = 8
STEP_SECONDS = 0.25
MIB = 1 << 20
LOOKS = 10
BUDGETS = {"verdict": 10.0, "core": 50.0, "locate": 1.0, "recommend": 0.5}


class Agents(asyncio.Protocol):
    """One connection to one of the agents; which, its own address says."""

    began: float
    count: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        octets = transport.get_extra_info("sockname")[0].split(".")
        self.number = int(octets[2]) * 256 + int(octets[3])

    def data_received(self, data: bytes) -> None:
        target = urlsplit(data.split(b" ", 2)[1].decode())
        if target.path == "/api/v1/report":
            report = Report(Verdict.OK, f"n{self.number}", 0.1, (ProbeResult("x", Verdict.OK, "", 0.1),), (), {})
            body = encode(report)
        else:
            body = encode(self.ranks(float(parse_qs(target.query)["since"][0])))
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def ranks(self, since: float) -> RanksDocument:
        now = time.monotonic() - self.began
        last = int(now / STEP_SECONDS)
        first = max(last - 1300, int(since / STEP_SECONDS), 0)
        rows = [self.row(self.number * RANKS + local, range(first, last)) for local in range(RANKS)]
        return RanksDocument(f"n{self.number}", "boot", max(0.0, now - 1), tuple(rows), ())

    def row(self, rank: int, steps: range) -> RankRow:
        slow = 0.05 if rank == 3 else 0.0
        phases = (0.01, 0.05 + slow, 0.08, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0)
        rows = tuple(
            StepRow(step, step * STEP_SECONDS, (step + 1) * STEP_SECONDS, phases, STEP_SECONDS - sum(phases))
            for step in steps
        )
        return RankRow(
            "bench", rank, rank % RANKS, self.count * RANKS, f"n{self.number}", None, 0, 1000, 1, "", "running",
            steps.stop, 1.0, 1.0, (0.0,) * 9, time.time(), (), None, "forward", 0, rows=rows,
        )  # fmt: skip


def serve_agents(count: int, port: int, ready: object) -> None:
    """Runs in a process of its own until it is ended."""

    async def run() -> None:
        Agents.began, Agents.count = time.monotonic() - 60, count  # a minute of steps is there already
        server = await asyncio.get_running_loop().create_server(Agents, "0.0.0.0", port, backlog=4096)
        ready.set()  # type: ignore[attr-defined]
        await server.serve_forever()

    asyncio.run(run())


@contextlib.contextmanager
def agents(count: int, port: int) -> Iterator[list[str]]:
    ready = multiprocessing.Event()
    process = multiprocessing.Process(target=serve_agents, args=(count, port, ready), daemon=True)
    process.start()
    ready.wait(30)
    try:
        yield [f"127.1.{number // 256}.{number % 256}:{port}" for number in range(count)]
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def collector(targets: list[str]) -> Iterator[tuple[psutil.Process, str]]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump({"targets": targets, "listen_address": "127.0.0.1:0"}, file)
        file.flush()
        command = [sys.executable, "-m", "laggard", "collector", "--config", file.name]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found
        try:
            yield psutil.Process(process.pid), found.group()
        finally:
            process.terminate()
            process.communicate()


def get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        document: dict[str, object] = json.load(answer)
        return document


def recommend(url: str) -> float:
    """Seconds that the command takes, which names the slow rank first."""
    asked = time.monotonic()
    command = [sys.executable, "-m", "laggard", "recommend", "--collector", url]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    if "rank 3 " not in said:
        raise SystemExit(f"laggard recommend does not name rank 3: {said[:300]!r}")
    return time.monotonic() - asked


def measure(count: int, seconds: float, port: int) -> list[Figure]:
    with agents(count, port) as targets, collector(targets) as (process, url):
        began = time.monotonic()
        while get(f"{url}/api/v1/location")["verdict"] != "fail":
            if time.monotonic() - began > 120:
                raise SystemExit(f"{count} agents: no verdict within 120 s")
            time.sleep(0.1)
        verdict = time.monotonic() - began
        before, started = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        share = 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - started)
        looks, stale = [], 0
        for _ in range(LOOKS):
            time.sleep(1.1)
            asked = time.monotonic()
            notes = get(f"{url}/api/v1/location?fresh=1")["notes"]
            looks.append(time.monotonic() - asked)
            stale += "stale" in str(notes)
        recommended = [recommend(url) for _ in range(LOOKS)]
        name = f"{count} agents"
        memory = process.memory_info().rss / MIB
        return [
            Figure(f"{name}: the verdict after the start", verdict, "s", verdict, verdict, BUDGETS["verdict"]),
            Figure(f"{name}: CPU, of a core", share, "%", share, share, BUDGETS["core"]),
            Figure(f"{name}: resident memory", memory, "MiB", memory, memory),
            quartiles(f"{name}: fresh answer, {stale} of {LOOKS} told to be older", looks, "s", BUDGETS["locate"]),
            quartiles(f"{name}: laggard recommend, from start to exit", recommended, "s", BUDGETS["recommend"]),
        ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, nargs="+", default=[64, 256, 1000])
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    figures = [it for n, count in enumerate(arguments.agents) for it in measure(count, arguments.seconds, 29400 + n)]
    return 0 if show("collector", figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
