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
from laggard.agent.processes import slurm_job
from laggard.agent.rounds import Round
from laggard.catalogue import metric
from laggard.model import Verdict
from laggard.names import PHASES
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
        yield from _probes(self._latest)
        yield from _ranks(rows)
        yield from _collectives(rows)


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


def _probes(latest: Round) -> Iterator[Metric]:
    probes, findings = latest.report.probes, latest.report.findings
    verdicts = [((it.name, verdict.value), float(it.verdict is verdict)) for it in probes for verdict in Verdict]
    named = {(it.code, it.severity.value, it.device): 1.0 for it in findings}
    yield _family("laggard_probe_verdict", verdicts)
    yield _family("laggard_probe_duration_seconds", [((it.name,), it.elapsed_seconds) for it in probes])
    yield _family("laggard_probe_last_run_timestamp_seconds", [((it.name,), latest.finished_at) for it in probes])
    yield _family("laggard_finding", named.items())


def _ranks(rows: list[RankRow]) -> Iterator[Metric]:
    keyed = [((row.job_id, str(row.rank)), row) for row in rows]
    phases = [
        ((*key, name), spent) for key, row in keyed for name, spent in zip(PHASES, row.phase_seconds, strict=True)
    ]
    yield _family("laggard_rank_info", [((*key, *_description(row)), 1) for key, row in keyed])
    yield _family("laggard_rank_up", [(key, float(row.state == "running")) for key, row in keyed])
    yield _family("laggard_rank_steps_total", [(key, row.steps) for key, row in keyed])
    yield _family("laggard_rank_step_seconds_total", [(key, row.step_seconds) for key, row in keyed])
    yield _family("laggard_rank_own_seconds_total", [(key, row.own_seconds) for key, row in keyed])
    yield _family("laggard_rank_input_seconds_total", [(key, row.phase_seconds[_INPUT]) for key, row in keyed])
    yield _family("laggard_rank_phase_seconds_total", phases)
    yield _family("laggard_rank_lost_events_total", [(key, row.lost) for key, row in keyed])
    yield _family(
        "laggard_rank_last_progress_timestamp_seconds",
        [(key, row.last_progress_timestamp_seconds) for key, row in keyed],
    )


_INPUT = PHASES.index("input")


def _description(row: RankRow) -> tuple[str, ...]:
    return row.node, str(row.local_rank), row.gpu or "", str(row.world_size), str(row.attempt)


def _collectives(rows: list[RankRow]) -> Iterator[Metric]:
    keyed = [((row.job_id, str(row.rank), it.op, it.group), it) for row in rows for it in row.collectives]
    yield _family("laggard_rank_collectives_total", [(key, it.count) for key, it in keyed])
    yield _family("laggard_rank_collective_seconds_total", [(key, it.seconds) for key, it in keyed])
    yield _family("laggard_rank_collective_bytes_total", [(key, it.bytes) for key, it in keyed])


def _family(name: str, samples: Samples) -> Metric:
    described = metric(name)
    kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    family = kind(described.name, described.help, labels=described.labels)  # a counter's `_total` is put back on
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
