"""The collector's own metrics: which agents answer, who is the culprit, what it costs. The catalogue has their
names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from laggard import __version__
from laggard.catalogue.metrics import metric
from laggard.collector.fleet.drain_cap import drains_document
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.model import Culprit

Samples = dict[tuple[str, ...], float]


def exposition(snapshot: ClusterSnapshot, max_drain_ratio: float, accept: str) -> tuple[bytes, str]:
    """The metrics as text and their content type, in the format that the header value `accept` asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot, max_drain_ratio))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families:
    """Created for each scrape, so that a job that is gone leaves no series behind."""

    def __init__(self, snapshot: ClusterSnapshot, max_drain_ratio: float) -> None:
        self._picture = snapshot
        self._drains = drains_document(snapshot, max_drain_ratio, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = _by_id(self._picture.jobs)
        slowed = {(name,): job.location.slowdown_ratio or 0.0 for name, job in jobs.items()}
        yield _family("laggard_build_info", {(__version__,): 1.0})
        yield _family("laggard_target_up", {(row.url,): float(row.state == "up") for row in self._picture.nodes})
        yield _family("laggard_job_ranks", {(name,): float(job.location.ranks_seen) for name, job in jobs.items()})
        yield _family(
            "laggard_job_slowdown_ratio", {name: ratio for name, ratio in slowed.items() if ratio is not None}
        )
        yield _family("laggard_culprit", dict(_culprits(jobs.values())))
        yield _family("laggard_fleet_finding", _fleet_findings(self._picture))
        yield _family("laggard_fleet_failing_nodes", {(): float(self._drains.failing)})
        yield _family("laggard_fleet_drain_cap_nodes", {(): float(self._drains.cap)})


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


def _family(name: str, samples: Samples) -> GaugeMetricFamily:
    described = metric(name)
    family = GaugeMetricFamily(described.name, described.help, labels=described.labels)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family
