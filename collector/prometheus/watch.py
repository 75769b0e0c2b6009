"""Looks at all jobs of a Prometheus again and again, for a collector that has no agents of its own, or not all."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.prometheus.choice import Known, clusters_text, known_jobs
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.verdict import locate_known
from laggard.errors import UsageError
from laggard.locate.job_timings import build_timings
from laggard.model import Location, Note

log = logging.getLogger("laggard.collector")

MAX_JOBS = 64
"""The most jobs that are judged each time, those that got on last."""

_OVER = frozenset(("ended", "stale"))


class PrometheusWatch:
    """`jobs` are replaced as a whole by each look(). `notes` say what was not looked at, and why."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self.jobs: tuple[JobSnapshot, ...] = ()
        self.notes: tuple[Note, ...] = ()
        self.up = False

    def look(self) -> None:
        """Judges the jobs; may take seconds. Where that fails, `notes` say why, and no job is known."""
        self._prometheus.warnings.clear()
        try:
            found = known_jobs(self._prometheus, None, None)
            self.jobs = tuple(self._judged(found[:MAX_JOBS]))
        except UsageError as error:
            log.error("%s", error)
            self.jobs, self.up = (), False
            self.notes = (Note("prometheus", f"jobs that no agent reports are not watched: {error}"),)
            return
        self.up = True
        left = len(found) - MAX_JOBS
        text = f"{left} jobs in Prometheus are not watched: {MAX_JOBS} at once are, those that got on last"
        self.notes = (Note("prometheus", text),) if left > 0 else ()
        if self._prometheus.warnings:
            missing = f"the answer is not whole, jobs may be missing: {self._prometheus.warnings[0]}"
            self.notes = (Note("prometheus", missing), *self.notes)

    def _judged(self, found: list[Known]) -> Iterator[JobSnapshot]:
        told = set[JobKey]()
        for each in found:
            if not (each.job.job_id and each.job.user.isdecimal() and len(each.job.user) <= 10):
                continue  # no metric of laggard's
            location = self._locate(each, [it for it in found if it.job[:2] == each.job[:2]])
            timings = build_timings(each.job.job_id, location.world_size, {}, {}, {})
            running = not any(note.kind in _OVER for note in location.notes)
            key = JobKey(int(each.job.user), each.job.job_id)
            if key in told:
                continue  # several clusters have it, which is said once
            told.add(key)
            yield JobSnapshot(key, running, timings, location, each.progressed_at)

    def _locate(self, each: Known, alike: list[Known]) -> Location:
        if len(alike) > 1:
            text = f"{len(alike)} clusters have this job: set prometheus_cluster to one of {clusters_text(alike)}"
            return unknown_location("several_clusters", text, each.job.job_id)
        try:
            return locate_known(self._prometheus, each.job, each.now, each.ahead)
        except UsageError:
            raise
        except Exception as error:  # a job that the analysis fails on leaves the others their verdict
            log.exception("the analysis of job %r failed", each.job.job_id)
            text = f"the analysis failed, a defect in laggard: {type(error).__name__}: {error}"
            return unknown_location("defect", text, each.job.job_id)
