"""The times that `laggard incidents --node` and `laggard cost` take on a large database, each as a process of its
own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common.figures import Figure, quartiles

from laggard.collector.incidents.database import IncidentDatabase
from laggard.collector.incidents.fault import Fault, NodeName
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.node_rows import NodeRows
from laggard.collector.incidents.run import Run
from laggard.model import Culprit, Severity

NODES, USERS, DAYS = 1000, 50, 90
BUDGET_SECONDS = 0.5


def answer_times(folder: Path, count: int, rounds: int) -> list[Figure]:
    """The times of the commands in so many rounds, Python's start included, and of Python's start alone."""
    path = folder / "incidents.sqlite"
    fill(path, count)
    database = ("--database", str(path), "--format", "json")
    return [
        _timed(rounds, "laggard --version, for comparison", ("--version",)),
        _timed(rounds, "laggard incidents --node", ("incidents", "--node", "gpu-0007", *database), BUDGET_SECONDS),
        *(_timed(rounds, f"laggard cost --since 7d --by {by}", ("cost", "--by", by, *database), BUDGET_SECONDS)
          for by in ("node", "cause", "user", "week")),
        _timed(rounds, "laggard cost --since 90d", ("cost", "--since", "90d", *database)),
    ]  # fmt: skip


def _timed(rounds: int, name: str, words: Sequence[str], budget: float | None = None) -> Figure:
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "laggard", *words], stdout=subprocess.PIPE, env=os.environ)
        taken.append(time.perf_counter() - began)
        assert done.returncode in (0, 1) and done.stdout
    return quartiles(name, taken[1:], "s", budget)


def fill(path: Path, count: int) -> None:
    """Writes a database as a collector of a busy cluster has it after 90 days, evenly over time."""
    draw, now = random.Random(7), time.time()
    database = IncidentDatabase.open(str(path), 8 << 30, 1e9)
    for first in range(0, count, 2000):
        database.write([_incident(draw, now, number, count) for number in range(first, min(first + 2000, count))], now)
    faults = tuple(_fault(draw, now, number) for number in range(16_000))
    names = tuple(NodeName(_node(n), f"GPU-{n}", now - 8e6, now, (f"GPU-{n}",)) for n in range(NODES))
    runs = tuple(_run(draw, now, number) for number in range(16_000))
    database.keep_nodes(NodeRows(faults, names, runs), now)
    database.close()


def _node(number: int) -> str:
    return f"gpu-{number:04d}"


def _incident(draw: random.Random, now: float, number: int, count: int) -> Incident:
    node, share = _node(draw.randrange(NODES)), draw.uniform(0.02, 0.5)
    begin = now - DAYS * 86400 * (1 - number / count)
    lasted = draw.expovariate(1 / 1800)
    kind = draw.choice(("slow_compute", "slow_host", "slow_link", "hung", "dead"))
    evidence = ("own time 0.412 s a step in forward, its peers 0.261 s, since step 1207 " + "." * 40,) * 3
    culprit = Culprit(kind, (draw.randrange(512),), node=node, gpu=f"GPU-{draw.getrandbits(64):016x}", phase="forward",
                      recoverable_ratio=share, evidence=evidence, advice="look at its clocks " * 4)  # fmt: skip
    user = draw.randrange(USERS)
    return Incident(
        id=int(begin * 1000) + number % 1000, owner=1000 + user, job_id=f"job-{draw.randrange(400)}",
        what=f"rank on {node} is slow", opened_at=begin, seen_at=begin + lasted, opened_as=culprit, culprit=culprit,
        findings=("GPU_THROTTLED",), most_recoverable_ratio=share, closed_at=min(now, begin + lasted),
        closed_because=draw.choice(("recovered", "job_ended")), progressed_at=begin - 20, world_size=512,
        lost_seconds=lasted * share, window_seconds=30.0,
    )  # fmt: skip


def _fault(draw: random.Random, now: float, number: int) -> Fault:
    begin = now - draw.uniform(0, DAYS * 86400)
    place = draw.randrange(NODES)
    return Fault(number + 1, _node(place), f"GPU-{place}", "GPU_XID", "GPU 0000:9b:00.0", Severity.CRITICAL, "an Xid",
                 "gpu_xid", begin, begin + 600, closed_at=begin + 600, closed_because="repaired")  # fmt: skip


def _run(draw: random.Random, now: float, number: int) -> Run:
    begin = now - draw.uniform(0, DAYS * 86400)
    return Run(1000 + draw.randrange(USERS), f"job-{draw.randrange(400)}", begin, begin + 3600, begin, "train.py", 512,
               0, 3600, begin + 3600, 3300.0, 100.0, 3000, begin + 3000, begin + 3600)  # fmt: skip
