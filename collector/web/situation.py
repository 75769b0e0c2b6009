"""The situation of a job as a collector knows it, for a recommendation."""

from __future__ import annotations

from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.recommend.advice.profile import with_job
from laggard.recommend.advice.situation import Situation


def situation_of(snapshot: ClusterSnapshot, name: str | None) -> Situation:
    """Returns the findings of the job's nodes, its culprits and its profile; without a job all nodes' findings."""
    job = snapshot.job(name)
    if job is None:
        return Situation(findings=tuple(each.finding for each in snapshot.findings))
    nodes = {node for node in job.timings.nodes if node}
    findings = tuple(each.finding for each in snapshot.findings if not nodes or each.node in nodes)
    known = Situation(findings=findings, torch_variables=job.environment)
    return with_job(known, job.timings, job.location.culprits)
