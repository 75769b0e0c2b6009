"""The summary that the page shows first: the verdict on one job in words, the list of jobs, and how the nodes
compare."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from laggard import __version__
from laggard.collector.incidents.incident import Incident, JobName
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.outliers import fleet_lines
from laggard.collector.web.documents import JobCounts, JobLine, SummaryDocument
from laggard.kit.users import user_text
from laggard.locate.describe import advice_lines, note_lines, sentence, support_lines
from laggard.model import Location, Verdict

DEFAULT_JOBS: Final = 100
"""The jobs in a summary where nobody asks for more: some 40 kB."""


def summary_document(
    snapshot: ClusterSnapshot, name: str | None, interval_seconds: float, limit: int = DEFAULT_JOBS, find: str = ""
) -> SummaryDocument:
    """`name`: as ClusterSnapshot.job() takes it. `interval_seconds`: from one round of scrapes to the next. `limit`: so
    many jobs. `find`: those whose name, user or script contains it, in capitals or not."""
    job, location = snapshot.job(name), snapshot.location(name)
    found = _found(snapshot.jobs, find.casefold()) if find else snapshot.jobs
    first = _first(found, job, limit)
    users = _users(first)
    return structs.replace(
        recorded_summary(location),
        age_seconds=None if snapshot.scraped_at is None else round(time.monotonic() - snapshot.scraped_at, 1),
        interval_seconds=interval_seconds,
        job=str(job.key) if job else None,
        jobs=tuple(_job_line(it, users[it.key.owner]) for it in first),
        fleet=fleet_lines(snapshot.fleet_findings, snapshot.fleet_notes),
        counts=JobCounts(
            total=len(snapshot.jobs),
            running=sum(it.running for it in snapshot.jobs),
            failing=sum(it.running and it.location.verdict is Verdict.FAIL for it in snapshot.jobs),
            found=len(found),
        ),
    )


def _found(jobs: Sequence[JobSnapshot], text: str) -> Sequence[JobSnapshot]:
    users = _users(jobs)
    return [it for it in jobs if text in "\n".join((str(it.key), users[it.key.owner], it.script)).casefold()]


def _first(jobs: Sequence[JobSnapshot], shown: JobSnapshot | None, limit: int) -> list[JobSnapshot]:
    """The first jobs, at most `limit`: rather those that run and have a culprit, of these those that lose most, then
    those that run; and the one that is shown, whatever its place. They stay in the snapshot's order."""
    places = sorted(range(len(jobs)), key=lambda place: jobs[place].urgency)[:limit]
    chosen = [jobs[place] for place in sorted(places)]
    if shown is not None and not any(it.key == shown.key for it in chosen):
        chosen.append(shown)
    return chosen


def job_names(snapshot: ClusterSnapshot, incidents: Iterable[Incident]) -> dict[str, JobName]:
    """The names by which people know the incidents' jobs, by their keys."""
    wanted = {it.key for it in incidents}
    users = {owner: _user(owner) for owner in {key.owner for key in wanted}}
    held = {it.key: it for it in snapshot.jobs if it.key in wanted}
    names = {}
    for key in wanted:
        job = held.get(key)
        names[str(key)] = JobName(users[key.owner], job.script if job else "", job.started_at if job else None)
    return names


def _users(jobs: Iterable[JobSnapshot]) -> dict[int, str]:
    """The names of the jobs' users; each is looked up once, since a directory is slow to ask."""
    return {owner: _user(owner) for owner in {job.key.owner for job in jobs}}


def _user(owner: int) -> str:
    return user_text(owner).removeprefix("user ")


def _job_line(job: JobSnapshot, user: str) -> JobLine:
    return JobLine(
        key=str(job.key),
        job_id=job.key.job_id,
        owner=job.key.owner,
        running=job.running,
        ranks=job.location.ranks_seen,
        verdict=job.location.verdict,
        user=user,
        script=job.script,
        started_at=job.started_at,
        sentence=sentence(job.location),
        lost_ranks=round(job.lost_ranks, 1),
    )


def recorded_summary(location: Location) -> SummaryDocument:
    """The summary of a verdict alone, as of a job that no collector watches."""
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
