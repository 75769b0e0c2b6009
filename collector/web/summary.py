"""What the page shows first: the verdict on one job in words, the jobs there are, and how the nodes compare."""

from __future__ import annotations

import time

from laggard import __version__
from laggard.collector.describe import evidence_lines, note_lines, sentence
from laggard.collector.fleet.outliers import fleet_lines
from laggard.collector.jobs.snapshot import Picture
from laggard.collector.web.documents import JobLine, SummaryDocument


def summary_document(picture: Picture, name: str | None, interval_seconds: float) -> SummaryDocument:
    """`name`: as Picture.job() takes it. `interval_seconds`: between two rounds."""
    job, location = picture.job(name), picture.location(name)
    lines = (
        JobLine(str(it.key), it.key.job_id, it.key.owner, it.running, it.location.ranks_seen, it.location.verdict)
        for it in picture.jobs
    )
    return SummaryDocument(
        version=__version__,
        age_seconds=None if picture.taken_at is None else round(time.monotonic() - picture.taken_at, 1),
        interval_seconds=interval_seconds,
        sentence=sentence(location),
        evidence=tuple(evidence_lines(location)),
        notes=tuple(note_lines(location)),
        job=str(job.key) if job else None,
        jobs=tuple(lines),
        location=location,
        fleet=fleet_lines(picture.fleet_findings, picture.fleet_notes),
    )
