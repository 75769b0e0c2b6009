"""The agent's metrics: of its ranks, its probes and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from laggard import __version__
from laggard.agent.prober.loop import ProbeRound
from laggard.agent.ranks.process_info import slurm_job
from laggard.catalogue import rank_metrics
from laggard.catalogue.exposition import exposition, metric_family
from laggard.model import Finding
from laggard.wire.ranks import RankRow, RanksDocument

DUPLICATE_RANK = "another user's rank has its name"


def agent_metrics(ranks: RanksDocument, latest: ProbeRound, accept: str) -> tuple[bytes, str]:
    """Returns the body and its content type, in the format that the Accept header asks for."""
    return exposition(_families(ranks, latest), accept)


def _families(ranks: RanksDocument, latest: ProbeRound) -> Iterator[Metric]:
    rows, duplicates = unique_ranks(ranks.ranks)
    rejected = Counter({it.reason: it.count for it in ranks.ignored})
    rejected[DUPLICATE_RANK] += duplicates
    yield metric_family(rank_metrics.BUILD_INFO.name, [((__version__,), 1)])
    yield metric_family("laggard_rank_files_ignored", [((reason,), n) for reason, n in rejected.items() if n])
    yield from _probe_families(latest, ranks.findings)
    for described, samples in rank_metrics.families([_rank_stats(row) for row in rows]):
        yield metric_family(described.name, samples)


def unique_ranks(rows: Iterable[RankRow]) -> tuple[list[RankRow], int]:
    """Returns one row for each job and rank, and the number of the others. Rank metrics have no label for the user.
    Where ranks of two users have one job and number, the rank in the cgroup of the SLURM job with that name wins, then
    a running one.

    A job_id that SLURM does not confirm is no lie: LAGGARD_JOB_ID may be anything, also another number. Such a rank is
    shown like any other, unless another has its name. The JSON documents tell users apart.
    """
    ascending = sorted(rows, key=_precedence)
    winners = {(row.job_id, row.rank): row for row in ascending}
    return [winners[name] for name in sorted(winners)], len(ascending) - len(winners)


def _precedence(row: RankRow) -> tuple[bool, bool, int]:
    return slurm_job(row.cgroup) == row.job_id, row.state == "running", -row.owner


def _probe_families(latest: ProbeRound, job_findings: Iterable[Finding]) -> Iterator[Metric]:
    probes, findings = latest.report.probes, (*latest.report.findings, *job_findings)
    verdicts = [((it.name, it.verdict.value), 1.0) for it in probes]  # the others have no series: probes are many
    unique = {(it.code, it.severity.value, it.device): 1.0 for it in findings}
    yield metric_family("laggard_probe_verdict", verdicts)
    yield metric_family("laggard_probe_duration_seconds", [((it.name,), it.elapsed_seconds) for it in probes])
    yield metric_family("laggard_probe_last_run_timestamp_seconds", [((it.name,), latest.finished_at) for it in probes])
    yield metric_family("laggard_finding", unique.items())


def _rank_stats(row: RankRow) -> rank_metrics.RankStats:
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
