"""The last steps of every job, in bounded memory: what the agents' answers are folded into, round by round."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from laggard.collector.jobs.job import Job, JobKey, RankWindow
from laggard.wire import RankRow, RanksDocument

CLAIM_SECONDS = 60.0
"""For how long after its last word an agent keeps the ranks that it spoke for."""


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
