"""One job as the collector remembers it: who its ranks are, and their last steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import structs

from laggard.collector.locate.job_timings import Evidence, evidence_from_rows
from laggard.wire import RankRow, StepRow

STEPS = 128
"""Steps kept of each rank; also the most that a verdict is drawn from."""


class JobKey(NamedTuple):
    """Two users may both call their job `test`."""

    owner: int
    job_id: str

    def __str__(self) -> str:
        return f"{self.owner}:{self.job_id}"


@dataclasses.dataclass
class RankWindow:
    """One rank: the newest row about it and its last steps, ascending. `source`: the agent that speaks for it."""

    source: str
    known: RankRow
    heard_at: float
    rows: dict[int, StepRow] = dataclasses.field(default_factory=dict)

    def fold(self, rows: Iterable[StepRow]) -> bool:
        """Takes in the rows that are new, and says whether there were any. A repeated step changes nothing."""
        fresh = [row for row in rows if row.step not in self.rows]
        if not fresh:
            return False
        merged = sorted((*self.rows.values(), *fresh), key=lambda row: row.step)[-STEPS:]
        before = next(reversed(self.rows), -1)
        self.rows = {row.step: row for row in merged}
        return next(reversed(self.rows)) > before

    def restarted(self, rows: Iterable[StepRow]) -> bool:
        """Whether `rows` count the steps anew, later in time: the same job name, another run."""
        if not self.rows:
            return False
        last = self.rows[next(reversed(self.rows))]
        return any(row.step <= last.step and row.start > last.end for row in rows)


@dataclasses.dataclass
class Job:
    """The ranks of one attempt of a job. `progressed_at`: when a step of it was last new to us, on our clock."""

    attempt: int
    heard_at: float
    progressed_at: float
    ranks: dict[int, RankWindow] = dataclasses.field(default_factory=dict)

    @property
    def running(self) -> bool:
        return any(rank.known.state == "running" for rank in self.ranks.values())

    @property
    def sources(self) -> set[str]:
        return {rank.source for rank in self.ranks.values()}

    @property
    def recency(self) -> tuple[bool, float, float]:
        """Greater: the likelier that this is the job a reader wants to see."""
        told = max((rank.known.last_progress_timestamp_seconds for rank in self.ranks.values()), default=0.0)
        return self.running, self.progressed_at, told

    def known(self, answering: Collection[str]) -> dict[int, RankRow]:
        """The newest row about each rank, without its steps."""
        return {
            number: rank.known if rank.source in answering else structs.replace(rank.known, state="unknown")
            for number, rank in self.ranks.items()
        }

    def evidence(self, job_id: str, answering: Collection[str], findings: Mapping[str, tuple[str, ...]]) -> Evidence:
        """The newest STEPS steps. A rank whose agent does not answer keeps its steps, but how it stands is unknown:
        silence of an agent is no evidence of a hang."""
        newest = sorted({step for rank in self.ranks.values() for step in rank.rows})[-STEPS:]
        first = newest[0] if newest else 0
        rows = {
            number: [row for step, row in rank.rows.items() if step >= first] for number, rank in self.ranks.items()
        }
        known = self.known(answering)
        world_size = max((row.world_size for row in known.values()), default=0)
        return evidence_from_rows(job_id, world_size, rows, known, findings)
