"""Writes what a collector holds of a live job as a recording, which `locate --trace` judges as the collector does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import NodeFindings, Table
from laggard.locate.positions import LiveLayout
from laggard.wire.ranks import RankRow


class JobRecording(NamedTuple):
    """The newest row about each rank, its steps, the findings of its node, and for how long its agent has not been
    asked. `owner`: the uid of the job's user."""

    job_id: str
    newest_rows: Mapping[int, RankRow]
    steps: Mapping[int, Table]
    findings_by_node: Mapping[str, NodeFindings]
    asked_seconds_ago: Mapping[int, float]
    owner: int | None = None

    def lines(self) -> Iterator[dict[str, Any]]:
        """The recording, each value a line of JSON. Steps have own times by phase and the time waited, in place of
        spans and collectives, which the collector does not hold."""
        yield {"laggard_recording": 1, "job_id": self.job_id, "owner": self.owner}
        for node, found in self.findings_by_node.items():
            yield {"kind": "findings", "node": node, **found._asdict()}
        positions = LiveLayout(self.newest_rows).indices
        for rank, row in sorted(self.newest_rows.items()):
            yield {**_rank_record(row), "position": positions[rank]}
            yield {**_state_record(rank, row), "asked_seconds_ago": self.asked_seconds_ago.get(rank, 0.0)}
            for step in self.steps[rank].tolist() if rank in self.steps else ():
                yield _step_record(rank, *step)


def _rank_record(row: RankRow) -> dict[str, Any]:
    names = ("rank", "node", "local_rank", "gpu", "attempt", "world_size", "facts")
    return {"kind": "rank", **{name: getattr(row, name) for name in names}}


def _state_record(rank: int, row: RankRow) -> dict[str, Any]:
    names = ("state", "phase", "stopped", "in_flight", "beat", "cpu_wait")
    return {"kind": "state", "rank": rank, **{name: getattr(row, name) for name in names}, "ended": row.end}


def _step_record(
    rank: int, step: float, start: float, end: float, waited: float, work: float, *phases: float
) -> dict[str, Any]:
    return {
        "kind": "step",
        "rank": rank,
        "step": int(step),
        "start": start,
        "end": end,
        "own": dict(zip(PHASES, phases, strict=True)),
        "waited": waited,
        "work": int(work),
    }
