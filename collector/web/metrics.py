"""The collector's own metrics: which agents answer, who is the culprit, what it costs. The catalogue has their
names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from laggard import __version__
from laggard.catalogue.exposition import exposition, metric_family
from laggard.catalogue.rank_metrics import BUILD_INFO
from laggard.collector.fleet.drain_cap import drains_document
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.model import Culprit

Samples = dict[tuple[str, ...], float]


def collector_metrics(snapshot: ClusterSnapshot, max_drain_ratio: float, accept: str) -> tuple[bytes, str]:
    """The metrics as text and their content type, in the format that the header value `accept` asks for."""
    return exposition(_families(snapshot, max_drain_ratio), accept)


def _families(snapshot: ClusterSnapshot, max_drain_ratio: float) -> Iterator[Metric]:
    jobs, drains = _by_id(snapshot.jobs), drains_document(snapshot, max_drain_ratio, None)
    slowed = {(name,): job.location.slowdown_ratio or 0.0 for name, job in jobs.items()}
    yield _family(BUILD_INFO.name, {(__version__,): 1.0})
    yield _family("laggard_target_up", {(row.url,): float(row.state == "up") for row in snapshot.nodes})
    yield _family("laggard_job_ranks", {(name,): float(job.location.ranks_seen) for name, job in jobs.items()})
    yield _family("laggard_job_slowdown_ratio", {name: ratio for name, ratio in slowed.items() if ratio is not None})
    yield _family("laggard_culprit", dict(_culprits(jobs.values())))
    yield _family("laggard_fleet_finding", _fleet_findings(snapshot))
    yield _family("laggard_fleet_failing_nodes", {(): float(drains.failing)})
    yield _family("laggard_fleet_drain_cap_nodes", {(): float(drains.cap)})


def _by_id(jobs: Iterable[JobSnapshot]) -> dict[str, JobSnapshot]:
    """The jobs by id. Two users' jobs of the same name would make the same series twice: the first is kept, which
    progressed last."""
    chosen: dict[str, JobSnapshot] = {}
    for job in jobs:
        chosen.setdefault(job.key.job_id, job)
    return chosen


def _culprits(jobs: Iterable[JobSnapshot]) -> Iterator[tuple[tuple[str, ...], float]]:
    """One series for each rank of a culprit, so that it can be joined with the rank metrics; a link has an empty
    rank."""
    for job in jobs:
        for culprit in job.location.culprits:
            for rank in _rank_labels(culprit):
                labels = (job.key.job_id, rank, culprit.kind, culprit.node or "")
                yield labels, culprit.recoverable_ratio or 0.0


def _fleet_findings(snapshot: ClusterSnapshot) -> Samples:
    return {
        (it.finding.code, it.finding.severity.value, it.finding.device, it.node): 1.0 for it in snapshot.fleet_findings
    }


def _rank_labels(culprit: Culprit) -> tuple[str, ...]:
    return tuple(str(rank) for rank in culprit.ranks) or ("",)


def _family(name: str, samples: Samples) -> Metric:
    return metric_family(name, samples.items())
