"""What a collector holds of a live job as a recording, which `locate --trace` judges as the collector does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from laggard.constants import PHASES
from laggard.wire import RankRow, StepRow


class Recording(NamedTuple):
    """The newest row about each rank, its steps, and its node's findings."""

    job_id: str
    known: Mapping[int, RankRow]
    steps: Mapping[int, Sequence[StepRow]]
    findings_by_node: Mapping[str, tuple[str, ...]]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Each a line of JSON. Steps carry their own time by phase and the time waited: their parts' own times are
        not held."""
        yield {"laggard_recording": 1, "job_id": self.job_id}
        for node, codes in self.findings_by_node.items():
            yield {"kind": "findings", "node": node, "codes": codes}
        for rank, row in sorted(self.known.items()):
            yield _who(row)
            yield {
                "kind": "state",
                "rank": rank,
                "state": row.state,
                "phase": row.phase,
                "stopped": row.stopped,
                "in_flight": row.in_flight,
                "beat": row.beat,
            }
            yield from (_step(rank, step) for step in self.steps.get(rank, ()))


def _who(row: RankRow) -> dict[str, Any]:
    names = ("rank", "node", "local_rank", "gpu", "attempt", "world_size", "facts")
    return {"kind": "rank", **{name: getattr(row, name) for name in names}}


def _step(rank: int, step: StepRow) -> dict[str, Any]:
    own = dict(zip(PHASES, step.phases, strict=True))
    return {
        "kind": "step",
        "rank": rank,
        "step": step.step,
        "start": step.start,
        "end": step.end,
        "own": own,
        "waited": step.waited,
    }
