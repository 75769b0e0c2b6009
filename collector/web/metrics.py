"""The collector's own metrics: which agents answer, who is the culprit, what it costs, what changes would gain, and
which machines fail again and again."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from prometheus_client import Metric

from laggard import __version__
from laggard.catalogue.exposition import daemon_families, metric_family
from laggard.catalogue.rank_metrics import BUILD_INFO
from laggard.collector.fleet import drains_document, failing_nodes
from laggard.collector.incidents.history import IncidentHistory
from laggard.collector.incidents.incident import Incident
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.node_history import LATELY_SECONDS, Failures, Offender, offenders
from laggard.collector.settings import CollectorSettings
from laggard.collector.targets import NodeLabels
from laggard.collector.web.source import ClusterSource, exclusions, situation_of
from laggard.kit.words import printable_line
from laggard.locate.describe import culprit_text
from laggard.model import JobKey
from laggard.recommend.advice.values import Item
from laggard.recommend.advice.watched import recommend_watched
from laggard.wire.exclusion import BASES

# The past, as the metrics tell it: which machines fail again and again, and what came back.
#
# The machines are read anew every few minutes, when somebody asks for the metrics.

PAST_SECONDS: Final = 300.0
MAX_OFFENDERS: Final = 100
"""The most machines that have series of their own."""

MAX_RETURNED: Final = 256
"""The most faults that came back and have a series."""


class PastLook:
    """The machines that fail again and again, for use from threads: while one looks, the others take what there is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._offenders: tuple[Offender, ...] = ()
        self._at = float("-inf")

    def look(self, incidents: IncidentHistory) -> tuple[Offender, ...]:
        with _alone(self._lock, "nothing of the past") as is_alone:
            if is_alone and self._clock() - self._at >= PAST_SECONDS:
                self._at, now = self._clock(), self._wall()
                lately = now - LATELY_SECONDS
                self._offenders = offenders(incidents.all_faults(lately), lately, now, MAX_OFFENDERS)
        return self._offenders


@contextlib.contextmanager
def _alone(lock: threading.Lock, lost: str) -> Iterator[bool]:
    """Whether no other thread is within. The other metrics do not suffer by what fails there."""
    is_alone = lock.acquire(blocking=False)
    try:
        yield is_alone
    except Exception:
        log.exception("a defect in laggard: %s in the metrics", lost)
    finally:
        if is_alone:
            lock.release()


def returned_faults(incidents: IncidentHistory) -> dict[tuple[str, ...], float]:
    """The open faults that were over less than a week before: node, code and device, and how often."""
    back = (it for it in incidents.faults if it.returned is not None)
    found = {(it.node, it.code, it.device): float(it.returned.times) for it in back if it.returned}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MAX_RETURNED])


# The gains that the running jobs' recommendations promise, for the metrics.
#
# To make one takes milliseconds to tenths of a second, and a collector may hold thousands of jobs. So a recommendation
# is looked at anew a minute after the last time, when somebody asks for the metrics, and one answer has a bounded time
# for that: the jobs whose last look is the longest ago come first, and the others keep what they have.

log = logging.getLogger("laggard.collector")

AGAIN_SECONDS: Final = 60.0
BUDGET_SECONDS: Final = 0.2
"""The time for one answer; the job that is under way is finished."""

MAX_JOBS: Final = 512
"""The most jobs that are looked at. Where more run, each user has as many as any other who has so many."""

MAX_ITEMS: Final = 8
"""The most items of one job: those that promise most. With MAX_JOBS the metrics have 8192 series at most."""

MAX_KEY_CHARACTERS: Final = 128
"""The most characters of what is to be changed, which may have a host's name in it."""


class Looked(NamedTuple):
    """`at`: when, in monotonic seconds; minus infinity: not yet."""

    at: float
    items: tuple[Item, ...]


_NEVER: Final = Looked(-math.inf, ())


class Recommended:
    """The recommendations of running jobs, for use from threads: while one looks, the others take what there is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked: dict[JobKey, Looked] = {}

    def look(self, snapshot: ClusterSnapshot) -> Mapping[JobKey, tuple[Item, ...]]:
        """The items of each running job that was looked at."""
        with _alone(self._lock, "no recommendations") as is_alone:
            if is_alone:
                self._renew(snapshot)
        return {key: looked.items for key, looked in self._looked.items() if looked.items}

    def _renew(self, snapshot: ClusterSnapshot) -> None:
        began = self._clock()
        looked = {key: self._looked.get(key, _NEVER) for key in _chosen(snapshot)}
        for key in sorted(looked, key=lambda key: looked[key].at):
            now = self._clock()
            if now - looked[key].at < AGAIN_SECONDS or now - began >= BUDGET_SECONDS:
                break
            looked[key] = Looked(now, _items(snapshot, key))
        self._looked = looked


def _chosen(snapshot: ClusterSnapshot) -> list[JobKey]:
    """The jobs that run, the first of each user before anybody's second."""
    before: Counter[int] = Counter()
    turns = []
    for job in snapshot.jobs:
        if job.running:
            turns.append((before[job.key.owner], job.key))
            before[job.key.owner] += 1
    return [key for _, key in sorted(turns, key=lambda turn: turn[0])[:MAX_JOBS]]


def _items(snapshot: ClusterSnapshot, key: JobKey) -> tuple[Item, ...]:
    try:
        return recommend_watched(situation_of(snapshot, str(key))).items[:MAX_ITEMS]
    except Exception:  # the other metrics do not suffer by it
        log.exception("a defect in laggard: no recommendation for job %s in the metrics", key)
        return ()


Samples = dict[tuple[str, ...], float]


@dataclasses.dataclass(frozen=True)
class CollectorMetrics:
    """All of the collector's metrics, now. To be used from threads. `ended`: how many connections were turned away, by
    the reason."""

    source: ClusterSource
    max_drain_ratio: float
    ended: Mapping[str, int] = dataclasses.field(default_factory=dict)
    recommended: Recommended = dataclasses.field(default_factory=Recommended)
    exclude_seconds: float = CollectorSettings().exclude_seconds
    past: PastLook = dataclasses.field(default_factory=PastLook)
    external_url: str = ""

    @classmethod
    def made(
        cls, source: ClusterSource, settings: CollectorSettings, ended: Mapping[str, int] = MappingProxyType({})
    ) -> CollectorMetrics:
        return cls(
            source,
            settings.max_drain_ratio,
            ended,
            exclude_seconds=settings.exclude_seconds,
            external_url=settings.external_url,
        )

    def of(self, source: ClusterSource) -> CollectorMetrics:
        """Those of another view of the cluster."""
        return dataclasses.replace(self, source=source)

    def families(self) -> Iterator[Metric]:
        snapshot, incidents = _own_jobs(self.source.snapshot), self.source.incidents
        yield from _of_jobs(snapshot)
        yield from _open_incidents(snapshot, incidents)
        if snapshot.only_of:
            return  # the rest is not about what its reader may see
        if self.external_url:
            yield _family("laggard_collector_external_url", {(self.external_url.rstrip("/"),): 1.0})
        yield from _of_the_fleet(snapshot, self.max_drain_ratio)
        yield from _of_incidents(incidents)
        yield from _of_recommendations(self.recommended.look(snapshot))
        yield from _of_the_past(incidents, self.past.look(incidents))
        found = exclusions(self.source, self.max_drain_ratio, self.exclude_seconds).exclusions
        excluded = Counter(it.basis for it in found)
        yield _family("laggard_fleet_excluded_nodes", {(basis,): float(excluded[basis]) for basis in BASES})
        ended: Samples = {(reason,): float(count) for reason, count in self.ended.items()}
        yield _family("laggard_collector_connections_ended_total", ended)
        yield from daemon_families(sum(self.ended.values()))


def _own_jobs(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot without the jobs that other evaluators judge: one Prometheus may scrape them all, and has each job
    once."""
    if snapshot.evaluators is None:
        return snapshot
    return dataclasses.replace(snapshot, jobs=tuple(job for job in snapshot.jobs if not job.elsewhere))


def _of_jobs(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    jobs = snapshot.jobs
    slowed = {_job_labels(job): job.location.slowdown_ratio for job in jobs}
    yield _family(BUILD_INFO.name, {(__version__,): 1.0})
    yield _family("laggard_target_up", {(row.url,): float(row.state == "up") for row in snapshot.nodes})
    yield _family("laggard_job_running", {_job_labels(job): float(job.running) for job in jobs})
    yield _family("laggard_job_ranks", {_job_labels(job): float(job.location.ranks_seen) for job in jobs})
    yield _family("laggard_job_slowdown_ratio", {job: ratio for job, ratio in slowed.items() if ratio is not None})
    past = {_job_labels(job): job.first_hour_ratio for job in jobs}
    yield _family("laggard_job_first_hour_ratio", {job: ratio for job, ratio in past.items() if ratio is not None})
    yield _family("laggard_culprit", dict(_culprits(jobs)))
    yield _family("laggard_culprit_place", dict(_places(jobs)))


def _of_the_fleet(snapshot: ClusterSnapshot, max_drain_ratio: float) -> Iterator[Metric]:
    drains = drains_document(snapshot, max_drain_ratio, None)
    yield _family("laggard_collector_jobs_not_held", {(): float(len(snapshot.not_held.unseen))})
    yield _family("laggard_collector_ranks_not_held", {(): float(sum(snapshot.not_held.ranks.values()))})
    if snapshot.evaluators is not None:
        yield _family("laggard_evaluators_live", {(): float(snapshot.evaluators)})
        yield _family("laggard_evaluator_jobs", {(): float(len(snapshot.jobs))})
    if snapshot.round_seconds is not None:
        yield _family("laggard_collector_round_seconds", {(): snapshot.round_seconds})
    yield _family("laggard_node_labels", dict(_node_labels(snapshot)))
    out: Samples = {(node, it.by, printable_line(it.reason, 128)): it.since for node, it in snapshot.out.items()}
    yield _family("laggard_node_out", out)
    found = ((it.finding, it.node) for it in snapshot.fleet_findings)
    differing: Samples = {(it.code, it.severity.value, it.device, node): 1.0 for it, node in found}
    yield _family("laggard_fleet_finding", differing)
    yield _family("laggard_fleet_wide_finding_nodes", {(code,): float(n) for code, n in snapshot.fleet_wide.items()})
    yield _family("laggard_fleet_failing_nodes", {(): float(len(failing_nodes(snapshot)))})
    yield _family("laggard_fleet_drain_cap_nodes", {(): float(drains.cap)})


def _open_incidents(snapshot: ClusterSnapshot, incidents: IncidentHistory) -> Iterator[Metric]:
    count = Counter(it.key for it in incidents.open)
    shown: Samples = {_job_labels(job): float(count[job.key]) for job in snapshot.jobs}
    yield _family("laggard_job_incidents_open", shown)
    again = Counter(it.key for it in incidents.open if it.returned)
    known: Samples = {_job_labels(job): float(again[job.key]) for job in snapshot.jobs if again[job.key]}
    yield _family("laggard_job_incidents_returned", known)
    told = [*((it, 0.0) for it in incidents.closed_lately), *((it, 1.0) for it in incidents.open)]
    yield _family("laggard_job_incident", {_incident_labels(it): value for it, value in told})


def _incident_labels(it: Incident) -> tuple[str, ...]:
    """The labels by its culprit as that was named first, so that one incident is one series."""
    culprit = it.opened_as
    what = printable_line(culprit_text(culprit), MAX_KEY_CHARACTERS)
    rank = str(culprit.ranks[0]) if len(culprit.ranks) == 1 else ""
    return it.job_id, str(it.owner), rank, culprit.kind, culprit.node or "", what


def _of_incidents(incidents: IncidentHistory) -> Iterator[Metric]:
    state = incidents.told_state()
    yield _family("laggard_incidents_opened_total", {(kind,): float(n) for kind, n in incidents.opened.items()})
    yield _family("laggard_incidents_closed_total", {(kind,): float(n) for kind, n in incidents.closed.items()})
    yield _family("laggard_incidents_refused_total", {(): float(incidents.refused)})
    if state.state != "off":  # a collector that was given no database has none that fails
        yield _family("laggard_incidents_history_up", {(): float(state.state == "on")})
        yield _family("laggard_incidents_database_bytes", {(): float(state.bytes)})


def _of_the_past(incidents: IncidentHistory, offenders: Iterable[Offender]) -> Iterator[Metric]:
    """The GPU-seconds that incidents took, what came back, and which machines fail again and again."""
    yield _family("laggard_lost_gpu_seconds_total", {(kind,): seconds for kind, seconds in incidents.lost.items()})
    yield _family("laggard_node_fault_returned", returned_faults(incidents))
    often: dict[tuple[str, ...], Failures] = {(it.node,): it.failures for it in offenders}
    yield _family("laggard_node_failures", {node: float(it.lately) for node, it in often.items()})
    between: Samples = {node: it.mtbf_seconds for node, it in often.items() if it.mtbf_seconds is not None}
    yield _family("laggard_node_between_failures_seconds", between)
    repair: Samples = {node: it.mttr_seconds for node, it in often.items() if it.mttr_seconds is not None}
    yield _family("laggard_node_repair_seconds", repair)


def _of_recommendations(recommended: Mapping[JobKey, tuple[Item, ...]]) -> Iterator[Metric]:
    gains: dict[tuple[str, ...], float | None] = {}
    for job, items in recommended.items():
        for item in items:  # of two with one name the first promises more
            labels = (
                job.job_id,
                str(job.owner),
                item.target,
                printable_line(item.key, MAX_KEY_CHARACTERS),
                item.gain.basis,
            )
            gains.setdefault(labels, item.gain.ratio)
    known = {labels: ratio for labels, ratio in gains.items() if ratio is not None}
    yield _family("laggard_job_recommendation", dict.fromkeys(gains, 1.0))
    yield _family("laggard_job_recommendation_gain_ratio", known)


def _culprits(jobs: Iterable[JobSnapshot]) -> Iterator[tuple[tuple[str, ...], float]]:
    """One series for each rank of a culprit, so that it can be joined with the rank metrics; a link has an empty
    rank."""
    for job in jobs:
        for culprit in job.location.culprits:
            for rank in culprit.ranks or ("",):
                labels = (*_job_labels(job), str(rank), culprit.kind, culprit.node or "")
                yield labels, culprit.recoverable_ratio or 0.0


def _places(jobs: Iterable[JobSnapshot]) -> Iterator[tuple[tuple[str, ...], float]]:
    for job in jobs:
        for culprit in job.location.culprits:
            if culprit.stack is not None:
                where = culprit.kind, culprit.node or "", printable_line(culprit.stack.place, MAX_KEY_CHARACTERS)
                yield (*_job_labels(job), str(culprit.stack.rank), *where), 1.0


def _node_labels(snapshot: ClusterSnapshot) -> Iterator[tuple[tuple[str, ...], float]]:
    """One series for each node, and none of what it serves itself has these labels: a node that moves to another rack
    begins one series anew, and not some hundred."""
    for row in snapshot.nodes:
        labels = snapshot.labels.get(row.url, NodeLabels())
        yield (row.node or "", urlsplit(row.url).netloc, *labels), float(any(labels))


def _job_labels(job: JobSnapshot) -> tuple[str, str]:
    return job.key.job_id, str(job.key.owner)


def _family(name: str, samples: Samples) -> Metric:
    return metric_family(name, samples.items())
