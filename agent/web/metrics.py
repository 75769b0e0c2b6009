"""The agent's metrics: of its ranks, its probes and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client import Metric

from laggard import __version__
from laggard.agent.idle_rings.state import OUTCOMES, IdleRingsState, StateFolder
from laggard.agent.prober.loop import ProbeRound
from laggard.catalogue import rank_metrics
from laggard.catalogue.exposition import daemon_families, exposition, metric_family
from laggard.model import Finding
from laggard.wire.ranks import RankRow, RanksDocument

ENDED_SECONDS: Final = 3600.0
"""The time for which the metrics tell of a rank that ended. Its file stays until its user's next job on this node,
perhaps for weeks: of every user who ever came, each rank would be some thirty series in all that time."""


class Daemon(NamedTuple):
    """The facts that the agent knows of itself: how long its last complete round of probes took, in seconds (None:
    there was none), and how many connections it has turned away."""

    round_seconds: float | None = None
    turned_away: int = 0


_NEW: Final = Daemon()


def agent_metrics(ranks: RanksDocument, latest: ProbeRound, accept: str, daemon: Daemon = _NEW) -> tuple[bytes, str]:
    """Returns the body and its content type, in the format that the Accept header asks for."""
    return exposition((*_families(ranks, latest), *_daemon_families(daemon)), accept)


def _families(ranks: RanksDocument, latest: ProbeRound) -> Iterator[Metric]:
    rejected = Counter({it.reason: it.count for it in ranks.ignored})
    yield metric_family(rank_metrics.BUILD_INFO.name, [((__version__,), 1)])
    yield metric_family("laggard_rank_files_ignored", [((reason,), n) for reason, n in rejected.items() if n])
    yield from _probe_families(latest, ranks.findings)
    yield from _ring_families(StateFolder().read())
    for described, samples in rank_metrics.families(
        [_rank_stats(row) for row in ranks.ranks if _is_told(row, ranks.now)]
    ):
        yield metric_family(described.name, samples)


def _daemon_families(daemon: Daemon) -> Iterator[Metric]:
    took = [] if daemon.round_seconds is None else [((), daemon.round_seconds)]
    yield metric_family("laggard_agent_probe_round_seconds", took)
    yield from daemon_families(daemon.turned_away)


def _probe_families(latest: ProbeRound, job_findings: Iterable[Finding]) -> Iterator[Metric]:
    probes, findings = latest.report.probes, (*latest.report.findings, *job_findings)
    verdicts = [((it.name, it.verdict.value), 1.0) for it in probes]  # the others have no series: probes are many
    unique = {(it.code, it.severity.value, it.device): 1.0 for it in findings}
    yield metric_family("laggard_probe_verdict", verdicts)
    yield metric_family("laggard_probe_duration_seconds", [((it.name,), it.elapsed_seconds) for it in probes])
    yield metric_family("laggard_probe_last_run_timestamp_seconds", [((it.name,), latest.finished_at) for it in probes])
    yield metric_family("laggard_finding", unique.items())


def _ring_families(state: IdleRingsState) -> Iterator[Metric]:
    """The metrics of `laggard agent --idle-rings`; none where it has not run."""
    yield metric_family(
        "laggard_idle_rings_total", [((name,), state.rings.get(name, 0)) for name in OUTCOMES] if state.rings else []
    )
    for name, value in (
        ("laggard_idle_ring_last_end_timestamp_seconds", state.ended_at),
        ("laggard_idle_ring_abort_seconds", state.abort_seconds),
    ):
        yield metric_family(name, [] if value is None else [((), value)])


def _is_told(row: RankRow, now: float | None) -> bool:
    """Whether the rank runs, or ended a short while before `now`."""
    if row.state == "running" or now is None:
        return True
    signs = (row.last_progress_timestamp_seconds, row.last_beat_timestamp_seconds or 0.0)
    return now - (row.end.at_seconds if row.end else max(signs)) < ENDED_SECONDS


def _rank_stats(row: RankRow) -> rank_metrics.RankStats:
    return rank_metrics.RankStats(
        job_id=row.job_id,
        owner=row.owner,
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
