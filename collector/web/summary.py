"""The summary that the page shows first: the verdict on one job in words, the list of jobs, and how the nodes
compare."""

from __future__ import annotations

import time

from laggard import __version__
from laggard.collector.describe import evidence_lines, note_lines, sentence
from laggard.collector.fleet.outliers import fleet_lines
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.web.documents import JobLine, SummaryDocument


def summary_document(snapshot: ClusterSnapshot, name: str | None, interval_seconds: float) -> SummaryDocument:
    """`name`: as ClusterSnapshot.job() takes it. `interval_seconds`: from one round of scrapes to the next."""
    job, location = snapshot.job(name), snapshot.location(name)
    lines = (
        JobLine(str(it.key), it.key.job_id, it.key.owner, it.running, it.location.ranks_seen, it.location.verdict)
        for it in snapshot.jobs
    )
    return SummaryDocument(
        version=__version__,
        age_seconds=None if snapshot.scraped_at is None else round(time.monotonic() - snapshot.scraped_at, 1),
        interval_seconds=interval_seconds,
        sentence=sentence(location),
        evidence=tuple(evidence_lines(location)),
        notes=tuple(note_lines(location)),
        job=str(job.key) if job else None,
        jobs=tuple(lines),
        location=location,
        fleet=fleet_lines(snapshot.fleet_findings, snapshot.fleet_notes),
    )
