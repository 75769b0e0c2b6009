"""The summary that the page shows first: the verdict on one job in words, the list of jobs, and how the nodes
compare."""

from __future__ import annotations

import time

from laggard import __version__
from laggard.collector.ask import user_text
from laggard.collector.describe import advice_lines, note_lines, sentence, support_lines
from laggard.collector.fleet.outliers import fleet_lines
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.web.documents import JobLine, SummaryDocument
from laggard.model import Location


def summary_document(snapshot: ClusterSnapshot, name: str | None, interval_seconds: float) -> SummaryDocument:
    """`name`: as ClusterSnapshot.job() takes it. `interval_seconds`: from one round of scrapes to the next."""
    job, location = snapshot.job(name), snapshot.location(name)
    lines = (_job_line(it) for it in snapshot.jobs)
    return SummaryDocument(
        version=__version__,
        age_seconds=None if snapshot.scraped_at is None else round(time.monotonic() - snapshot.scraped_at, 1),
        interval_seconds=interval_seconds,
        sentence=sentence(location),
        evidence=tuple(support_lines(location)),
        notes=tuple(note_lines(location)),
        job=str(job.key) if job else None,
        jobs=tuple(lines),
        location=location,
        fleet=fleet_lines(snapshot.fleet_findings, snapshot.fleet_notes),
        todo=tuple(advice_lines(location)),
    )


def _job_line(job: JobSnapshot) -> JobLine:
    return JobLine(
        key=str(job.key),
        job_id=job.key.job_id,
        owner=job.key.owner,
        running=job.running,
        ranks=job.location.ranks_seen,
        verdict=job.location.verdict,
        user=user_text(job.key.owner).removeprefix("user "),
        script=job.script,
        started_at=job.started_at,
        sentence=sentence(job.location),
    )


def recorded_summary(location: Location) -> SummaryDocument:
    """The same of a job that no collector watches."""
    return SummaryDocument(
        version=__version__,
        age_seconds=None,
        interval_seconds=0.0,
        sentence=sentence(location),
        evidence=tuple(support_lines(location)),
        notes=tuple(note_lines(location)),
        job=location.job_id,
        jobs=(),
        location=location,
        todo=tuple(advice_lines(location)),
    )
