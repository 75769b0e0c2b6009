"""The agent's metrics. Families are made anew for each scrape, so that what is gone leaves no series behind; their
names, help and labels are the catalogue's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from laggard import __version__
from laggard.agent.prober.loop import Round
from laggard.agent.ranks.process_info import slurm_job
from laggard.catalogue import rank_metrics
from laggard.catalogue.metrics import metric
from laggard.model import Finding
from laggard.wire import RankRow, RanksDocument

Samples = Iterable[tuple[tuple[str, ...], float]]

TWO_CLAIMS = "another user's rank has its name"


def exposition(ranks: RanksDocument, latest: Round, accept: str) -> tuple[bytes, str]:
    """The body and its content type, in the format that the Accept header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Node(ranks, latest))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a header that makes no sense asks for nothing
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _Node(Collector):
    def __init__(self, ranks: RanksDocument, latest: Round) -> None:
        self._ranks = ranks
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        rows, turned_away = one_of_each(self._ranks.ranks)
        ignored = Counter({it.reason: it.count for it in self._ranks.ignored})
        ignored[TWO_CLAIMS] += turned_away
        yield _family("laggard_build_info", [((__version__,), 1)])
        yield _family("laggard_rank_files_ignored", [((reason,), n) for reason, n in ignored.items() if n])
        yield from _probes(self._latest, self._ranks.findings)
        for described, samples in rank_metrics.families([_row(row) for row in rows]):
            yield _family(described.name, samples)


def one_of_each(rows: Iterable[RankRow]) -> tuple[list[RankRow], int]:
    """One row for each job and rank, and how many others there were. Rank metrics carry no user: where two users
    claim one name, the one whose cgroup is that SLURM job's has it, then one that lives.

    A claim that SLURM does not confirm is no lie: LAGGARD_JOB_ID may be anything, another number too. It is told of
    like any other unless its name is taken; the documents tell users apart.
    """
    claims = sorted(rows, key=_claim)
    chosen = {(row.job_id, row.rank): row for row in claims}
    return [chosen[name] for name in sorted(chosen)], len(claims) - len(chosen)


def _claim(row: RankRow) -> tuple[bool, bool, int]:
    return slurm_job(row.cgroup) == row.job_id, row.state == "running", -row.owner


def _probes(latest: Round, of_jobs: Iterable[Finding]) -> Iterator[Metric]:
    probes, findings = latest.report.probes, (*latest.report.findings, *of_jobs)
    verdicts = [((it.name, it.verdict.value), 1.0) for it in probes]  # one each: there are many probes
    named = {(it.code, it.severity.value, it.device): 1.0 for it in findings}
    yield _family("laggard_probe_verdict", verdicts)
    yield _family("laggard_probe_duration_seconds", [((it.name,), it.elapsed_seconds) for it in probes])
    yield _family("laggard_probe_last_run_timestamp_seconds", [((it.name,), latest.finished_at) for it in probes])
    yield _family("laggard_finding", named.items())


def _row(row: RankRow) -> rank_metrics.RankStats:
    return rank_metrics.RankStats(
        job_id=row.job_id,
        rank=row.rank,
        node=row.node,
        local_rank=row.local_rank,
        gpu=row.gpu,
        world_size=row.world_size,
        attempt=row.attempt,
        up=row.state == "running",
        steps=row.steps,
        step_seconds=row.step_seconds,
        own_seconds=row.own_seconds,
        phase_seconds=row.phase_seconds,
        last_progress=row.last_progress_timestamp_seconds,
        last_beat=row.last_beat_timestamp_seconds,
        in_flight_seconds=row.in_flight.seconds if row.in_flight else 0.0,
        collectives=row.collectives,
        lost=row.lost,
    )


def _family(name: str, samples: Samples) -> Metric:
    described = metric(name)
    kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    family = kind(described.name, described.help, labels=described.labels)  # a counter's `_total` is put back on
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
