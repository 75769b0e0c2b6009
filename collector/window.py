"""The last steps of every job, in bounded memory: what the agents' answers are folded into, round by round."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import structs

from laggard.collector.evidence import Evidence, evidence_from_rows
from laggard.wire import RankRow, RanksDocument, StepRow

STEPS = 128
"""Steps kept of each rank; also the most that a verdict is drawn from."""


CLAIM_SECONDS = 60.0
"""For how long after its last word an agent keeps the ranks that it spoke for."""


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

    def evidence(self, job_id: str, answering: Collection[str], findings: Mapping[str, tuple[str, ...]]) -> Evidence:
        """The newest STEPS steps. A rank whose agent does not answer keeps its steps, but how it stands is unknown:
        silence of an agent is no evidence of a hang."""
        newest = sorted({step for rank in self.ranks.values() for step in rank.rows})[-STEPS:]
        first = newest[0] if newest else 0
        rows = {
            number: [row for step, row in rank.rows.items() if step >= first] for number, rank in self.ranks.items()
        }
        known = {
            number: rank.known if rank.source in answering else structs.replace(rank.known, state="unknown")
            for number, rank in self.ranks.items()
        }
        world_size = max((row.world_size for row in known.values()), default=0)
        return evidence_from_rows(job_id, world_size, rows, known, findings)


class Windows:
    """All jobs. Not thread-safe: one round folds, then looks, then the next round begins."""

    def __init__(self, max_jobs: int = 64, max_ranks: int = 8192, forget_after_seconds: float = 900.0) -> None:
        self.jobs: dict[JobKey, Job] = {}
        self._max_jobs = max_jobs
        self._max_ranks = max_ranks
        self._forget_after_seconds = forget_after_seconds

    def fold(self, source: str, document: RanksDocument, now: float) -> int:
        """Takes in what agent `source` said at `now` (seconds, any monotonic clock). Returns how many ranks were
        turned away: claimed by another agent too, of an attempt that is over, or beyond the limits."""
        return sum(not self._fold_rank(source, row, now) for row in _newest(document.ranks))

    def forget(self, now: float) -> None:
        """Drops the jobs that have ended, or that no agent has spoken of, for too long."""
        for key, job in list(self.jobs.items()):
            last = job.heard_at if job.running else job.progressed_at
            if now - last > self._forget_after_seconds:
                del self.jobs[key]

    def leave(self, source: str) -> None:
        """Forgets what `source` said: its machine was rebooted, and its clock began anew."""
        for key, job in list(self.jobs.items()):
            job.ranks = {number: rank for number, rank in job.ranks.items() if rank.source != source}
            if not job.ranks:
                del self.jobs[key]

    def _fold_rank(self, source: str, row: RankRow, now: float) -> bool:
        job = self._job(row, now)
        if job is None or row.attempt < job.attempt:
            return False
        rank = job.ranks.get(row.rank)
        if rank is not None and rank.source == source and rank.restarted(row.rows):
            job = self.jobs[JobKey(row.owner, row.job_id)] = Job(row.attempt, now, now)
            rank = None
        if rank is None or rank.source != source:
            rank = self._claim(job, source, row, now)
        if rank is None:
            return False
        rank.known, rank.heard_at, job.heard_at = structs.replace(row, rows=()), now, now
        if rank.fold(row.rows):
            job.progressed_at = now
        return True

    def _job(self, row: RankRow, now: float) -> Job | None:
        """The job that `row` belongs to, made anew for a higher attempt: an elastic restart may renumber the ranks."""
        key = JobKey(row.owner, row.job_id)
        job = self.jobs.get(key)
        if job is not None and row.attempt <= job.attempt:
            return job
        if job is None and not (self._worth_a_job(row) and self._room_for_job()):
            return None
        self.jobs[key] = Job(row.attempt, now, now)
        return self.jobs[key]

    def _claim(self, job: Job, source: str, row: RankRow, now: float) -> RankWindow | None:
        """A window for the rank, unless another agent speaks for it: the first to do so keeps it while it goes on."""
        rank = job.ranks.get(row.rank)
        if rank is not None and rank.known.state == "running" and now - rank.heard_at < CLAIM_SECONDS:
            return None
        if rank is None and sum(len(other.ranks) for other in self.jobs.values()) >= self._max_ranks:
            return None
        job.ranks[row.rank] = RankWindow(source, row, now)
        return job.ranks[row.rank]

    @staticmethod
    def _worth_a_job(row: RankRow) -> bool:
        """The file of a rank that ended may lie there for days: it does not bring back a job that was forgotten."""
        return row.state == "running" or bool(row.rows)

    def _room_for_job(self) -> bool:
        """Where the table is full, the job that ended the longest ago makes room; running ones are never pushed out."""
        if len(self.jobs) < self._max_jobs:
            return True
        ended = [key for key, job in self.jobs.items() if not job.running]
        if not ended:
            return False
        del self.jobs[min(ended, key=lambda key: self.jobs[key].recency)]
        return True


def _newest(rows: Iterable[RankRow]) -> Iterable[RankRow]:
    """One row for each rank: a node may still hold the file of an attempt, or of a process, that is over."""
    ascending = sorted(rows, key=lambda row: (row.attempt, row.state == "running", row.last_progress_timestamp_seconds))
    return {(row.owner, row.job_id, row.rank): row for row in ascending}.values()
