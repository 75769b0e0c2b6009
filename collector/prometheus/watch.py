"""Looks at all jobs of a Prometheus again and again, for a collector that has no agents of its own, or not all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.prometheus.choice import Known, clusters_text, known_jobs
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.verdict import locate_known
from laggard.kit.errors import UsageError
from laggard.locate.job_timings import build_timings
from laggard.model import JobKey, Location, Note

log = logging.getLogger("laggard.collector")

MAX_JOBS: Final = 512
"""The most jobs that are judged each time, those that got on last. So many of 256 ranks take some 20 s of CPU time
(docs/development/measurements.md)."""

_TELL_SECONDS: Final = 1.0
"""The time after which verdicts of a look are told that is not at its end."""

_ENDED: Final = "ended"
_STALE: Final = "stale"
"""The notes of a job that has ended, and of one of which nobody has told of late: so it is after Prometheus was away,
too, so that no such job is taken for one that has ended."""


class PrometheusWatch:
    """`jobs` have the newest verdict on each; a look() tells of them while it goes on. `notes` say what was not looked
    at, and why. `interval_seconds`: the time after which one look is followed by the next."""

    def __init__(self, prometheus: Prometheus, interval_seconds: float = 60.0) -> None:
        self._prometheus, self._interval_seconds = prometheus, interval_seconds
        self.jobs: tuple[JobSnapshot, ...] = ()
        self.notes: tuple[Note, ...] = ()
        self.up = False

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except Exception:  # one failed look must not be the last
                log.exception("a defect in laggard: this look at Prometheus was lost")
            await asyncio.sleep(self._interval_seconds)

    def look(self) -> None:
        """Judges the jobs; may take seconds. Where that fails, `notes` say why, and no job is known."""
        self._prometheus.warnings.clear()
        began = time.monotonic()
        try:
            found = known_jobs(self._prometheus, None, None)
            self._judge(found[:MAX_JOBS])
        except UsageError as error:
            log.error("%s", error)
            self.jobs, self.up = (), False
            self.notes = (Note("prometheus", f"jobs that no agent reports are not watched: {error}"),)
            return
        self.up = True
        left = len(found) - MAX_JOBS
        text = f"{left} jobs in Prometheus are not watched: {MAX_JOBS} at once are, those that got on last"
        self.notes = (Note("prometheus", text),) if left > 0 else ()
        took = time.monotonic() - began
        if took > self._interval_seconds:
            slow = f"a look at its {len(self.jobs)} jobs took {took:.0f} s: verdicts may be so much older"
            self.notes = (*self.notes, Note("prometheus", slow))
        if self._prometheus.warnings:
            missing = f"the answer is not whole, jobs may be missing: {self._prometheus.warnings[0]}"
            self.notes = (Note("prometheus", missing), *self.notes)

    def _judge(self, found: list[Known]) -> None:
        """Judges the jobs one after the other. Until one is judged anew its former verdict stands."""
        alike = by_key(found)
        newest = {job.key: job for job in self.jobs if job.key in alike}
        told = time.monotonic()
        for key, known in alike.items():
            newest[key] = judged(self._prometheus, key, known)
            if time.monotonic() - told > _TELL_SECONDS:
                self.jobs, told = _in_order(alike, newest), time.monotonic()
        self.jobs = _in_order(alike, newest)


def _in_order(keys: Iterable[JobKey], jobs: Mapping[JobKey, JobSnapshot]) -> tuple[JobSnapshot, ...]:
    return tuple(jobs[key] for key in keys if key in jobs)


def key_of(each: Known) -> JobKey | None:
    """The job's key; None where its labels are those of no metric of laggard's."""
    job_id, user = each.job[:2]
    return JobKey(int(user), job_id) if job_id and user.isdecimal() and len(user) <= 10 else None


def by_key(listed: Iterable[Known]) -> dict[JobKey, list[Known]]:
    """The jobs by their keys: several of one key are of several clusters. In the order of `listed`."""
    found: dict[JobKey, list[Known]] = {}
    for each in listed:
        key = key_of(each)
        if key is not None:
            found.setdefault(key, []).append(each)
    return found


def judged(prometheus: Prometheus, key: JobKey, alike: Sequence[Known]) -> JobSnapshot:
    """The job with its verdict now. `alike`: those of its key. Raises UsageError where Prometheus does not answer."""
    return snapshot_of(key, _locate(prometheus, alike), alike[0].progressed_at)


def snapshot_of(key: JobKey, location: Location, progressed_at: float) -> JobSnapshot:
    """A job of which nothing is known but the verdict: Prometheus' counters have no steps."""
    timings = build_timings(key.job_id, location.world_size, {}, {}, {})
    kinds = {note.kind for note in location.notes}
    return JobSnapshot(key, _ENDED not in kinds, timings, location, progressed_at, told=_STALE not in kinds)


def _locate(prometheus: Prometheus, alike: Sequence[Known]) -> Location:
    each = alike[0]
    if len(alike) > 1:
        text = f"{len(alike)} clusters have this job: set prometheus_cluster to one of {clusters_text(alike)}"
        return unknown_location("several_clusters", text, each.job.job_id)
    try:
        return locate_known(prometheus, each)
    except UsageError:
        raise
    except Exception as error:  # a job that the analysis fails on leaves the others their verdict
        log.exception("the analysis of job %r failed", each.job.job_id)
        text = f"the analysis failed, a defect in laggard: {type(error).__name__}: {error}"
        return unknown_location("defect", text, each.job.job_id)
