"""The last steps of every job in bounded memory, into which the agents' answers are ingested round by round."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from laggard.collector.jobs.job import Job, JobKey, RankWindow
from laggard.wire.ranks import RankRow, RanksDocument

CLAIM_SECONDS = 60.0
"""How long an agent keeps its claim on a rank that it has stopped reporting."""


class JobWindows:
    """The windows of all jobs. Not thread-safe: a round ingests, then reads, then the next round begins."""

    def __init__(self, max_jobs: int = 64, max_ranks: int = 8192, expire_after_seconds: float = 900.0) -> None:
        self.jobs: dict[JobKey, Job] = {}
        self._max_jobs = max_jobs
        self._max_ranks = max_ranks
        self._expire_after_seconds = expire_after_seconds

    def ingest(self, source: str, document: RanksDocument, now: float) -> int:
        """Adds the ranks that agent `source` reported at `now` (seconds, any monotonic clock). Returns how many were
        rejected: claimed by another agent too, of an attempt that is over, or beyond the limits."""
        return sum(not self._ingest_rank(source, row, now) for row in _newest(document.ranks))

    def expire(self, now: float) -> None:
        """Drops the jobs that ended too long ago, and those that no agent has reported for too long."""
        for key, job in list(self.jobs.items()):
            last = job.updated_at if job.running else job.progressed_at
            if now - last > self._expire_after_seconds:
                del self.jobs[key]

    def drop_source(self, source: str) -> None:
        """Drops the ranks that agent `source` reported: its machine was rebooted, and its clock began anew."""
        for key, job in list(self.jobs.items()):
            job.ranks = {number: rank for number, rank in job.ranks.items() if rank.source != source}
            if not job.ranks:
                del self.jobs[key]

    def _ingest_rank(self, source: str, row: RankRow, now: float) -> bool:
        job = self._job_of(row, now)
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
        rank.newest, rank.updated_at, job.updated_at = structs.replace(row, rows=()), now, now
        if rank.ingest(row.rows):
            job.progressed_at = now
        return True

    def _job_of(self, row: RankRow, now: float) -> Job | None:
        """The job of `row`, started anew for a higher attempt: an elastic restart may renumber the ranks. None where
        the job is not known and may not be added."""
        key = JobKey(row.owner, row.job_id)
        job = self.jobs.get(key)
        if job is not None and row.attempt <= job.attempt:
            return job
        if job is None and not (self._worth_a_job(row) and self._make_room()):
            return None
        self.jobs[key] = Job(row.attempt, now, now)
        return self.jobs[key]

    def _claim(self, job: Job, source: str, row: RankRow, now: float) -> RankWindow | None:
        """A new window for the rank. None where another agent has claimed it, which the first to report a rank does
        for as long as it goes on, or where there are too many ranks."""
        rank = job.ranks.get(row.rank)
        if rank is not None and rank.newest.state == "running" and now - rank.updated_at < CLAIM_SECONDS:
            return None
        if rank is None and sum(len(other.ranks) for other in self.jobs.values()) >= self._max_ranks:
            return None
        job.ranks[row.rank] = RankWindow(source, row, now)
        return job.ranks[row.rank]

    @staticmethod
    def _worth_a_job(row: RankRow) -> bool:
        """The file of a rank that ended may stay for days: it does not bring back a job that has expired."""
        return row.state == "running" or bool(row.rows)

    def _make_room(self) -> bool:
        """Whether there is room for another job. If need be, the job that ended the longest ago is dropped; a running
        one never is."""
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
