"""A job of any size as a collector has it after a round, and what the collector's web part asks for it."""

import time
from functools import cache
from typing import Any

from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.jobs.snapshot import ClusterSnapshot, build_snapshot
from laggard.collector.jobs.window import JobWindows
from laggard.locate.job_timings import Table
from laggard.locate.verdict import locate
from laggard.wire.nodes import NodeRow
from laggard.wire.ranks import RankRow, RanksDocument
from support.collectors import rank_row
from support.steps import StepRow, step_table

RANKS_PER_NODE = 8
STEPS = 128
SLOW = 421


class Source:
    why_not_ready = ""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.incidents = IncidentHistory(HistorySettings("", 0, 0.0, 60.0))

    async def refresh(self) -> bool:
        return True

    def looked_at(self, key: Any, ranks: Any) -> dict[int, Any]:
        return {}

    def recording(self, name: str | None) -> None:
        return None

    async def digest(self, name: str | None, run: str) -> None:
        return None


def made_snapshot(ranks: int, ranks_per_node: int = RANKS_PER_NODE, steps: int = STEPS) -> ClusterSnapshot:
    windows, nodes = JobWindows(), []
    for first in range(0, ranks, ranks_per_node):
        name, numbers = f"gpu-{first // ranks_per_node:04d}", tuple(range(first, first + ranks_per_node))
        made = tuple(made_rank(rank, ranks, name, steps) for rank in numbers)
        document = RanksDocument(name, "boot", 0.0, made, ())
        tables = [made_steps(0.1 if rank == SLOW % ranks else 0.0, rank * 7 % 11, steps) for rank in numbers]
        windows.ingest(f"http://{name}:19400", document, tables, 1.0)
        nodes.append(NodeRow(f"http://{name}:19400", name, "up", "", 1.0, "ok", (), numbers))
    cluster = ClusterSnapshot(tuple(nodes), rounds=1, scraped_at=time.monotonic())
    return build_snapshot(windows, cluster, locate)


def made_rank(rank: int, ranks: int, node: str, steps: int = STEPS) -> RankRow:
    own = {"job_id": "pretrain", "local_rank": rank % RANKS_PER_NODE, "node": node, "pid": 1, "cgroup": ""}
    times = {"steps": steps, "step_seconds": 0.25 * steps, "own_seconds": 0.15 * steps}
    return rank_row(rank, ranks, **own, **times, last_progress_timestamp_seconds=0.0)


@cache
def made_steps(extra: float, shift: int, steps: int) -> Table:
    return step_table(made_step(step, extra, 0.001 * ((shift + step * 13) % 11)) for step in range(steps))


def made_step(step: int, extra: float, noise: float) -> StepRow:
    phases = (0.01, 0.05 + extra + noise, 0.08, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0)
    return StepRow(step, step * 0.27, step * 0.27 + 0.27, phases, 0.27 - sum(phases))
