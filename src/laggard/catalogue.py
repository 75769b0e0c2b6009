"""The one place where a metric or a finding code is named. Exposition, docs and tests are made from it."""

from __future__ import annotations

import dataclasses

from laggard.model import Severity


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric family. Names follow Prometheus' conventions: base units, counters end in `_total`."""

    name: str
    kind: str  # gauge, counter, info
    help: str
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FindingKind:
    """A finding code: its usual severity and what it means in one line. Its page is docs/findings/CODE.md."""

    code: str
    severity: Severity
    summary: str

    @property
    def doc(self) -> str:
        return f"docs/findings/{self.code}.md"


_RANK = ("job_id", "rank")

METRICS: tuple[Metric, ...] = (
    Metric("laggard_build_info", "gauge", "Version of laggard; always 1.", ("version",)),
    Metric(
        "laggard_probe_verdict",
        "gauge",
        "1 for the verdict of the probe's last run (cached), 0 for the others.",
        ("probe", "verdict"),
    ),
    Metric("laggard_probe_duration_seconds", "gauge", "How long the probe's last run took (cached).", ("probe",)),
    Metric("laggard_probe_last_run_timestamp_seconds", "gauge", "When the probe last ran, Unix time.", ("probe",)),
    Metric(
        "laggard_finding",
        "gauge",
        "A finding of the last probe run (cached); always 1.",
        ("code", "severity", "device"),
    ),
    Metric("laggard_rank_files_ignored", "gauge", "Rank files that were not believed, by reason.", ("reason",)),
    Metric(
        "laggard_rank_info",
        "gauge",
        "Who a rank is; always 1. Join on job_id and rank.",
        (*_RANK, "hostname", "local_rank", "gpu", "world_size", "attempt"),
    ),
    Metric("laggard_rank_up", "gauge", "1 while the rank's process holds its file's lock.", _RANK),
    Metric("laggard_rank_steps_total", "counter", "Optimizer steps done.", _RANK),
    Metric("laggard_rank_step_seconds_total", "counter", "Time in steps.", _RANK),
    Metric("laggard_rank_own_seconds_total", "counter", "Time not waiting in a collective or for input.", _RANK),
    Metric("laggard_rank_input_seconds_total", "counter", "Time waiting for input.", _RANK),
    Metric(
        "laggard_rank_phase_seconds_total", "counter", "Own time by phase, collectives taken out.", (*_RANK, "phase")
    ),
    Metric("laggard_rank_collectives_total", "counter", "Collectives done.", (*_RANK, "op", "group")),
    Metric("laggard_rank_collective_seconds_total", "counter", "Time blocked in collectives.", (*_RANK, "op", "group")),
    Metric(
        "laggard_rank_collective_bytes_total",
        "counter",
        "Size of the collectives as nccl-tests counts it.",
        (*_RANK, "op", "group"),
    ),
    Metric(
        "laggard_rank_last_progress_timestamp_seconds",
        "gauge",
        "When the rank last finished a step or phase, Unix time.",
        _RANK,
    ),
    Metric("laggard_rank_lost_events_total", "counter", "Events that the hook could not record.", _RANK),
    Metric("laggard_target_up", "gauge", "1 where the agent answered the collector's last scrape.", ("target",)),
    Metric(
        "laggard_culprit",
        "gauge",
        "Share of the step time that fixing this culprit would save.",
        ("job_id", "rank", "kind", "hostname"),
    ),
    Metric(
        "laggard_job_slowdown_ratio", "gauge", "Step time over the step time without culprits; 1: none.", ("job_id",)
    ),
    Metric("laggard_job_ranks", "gauge", "Ranks seen of the job.", ("job_id",)),
)

FINDINGS: tuple[FindingKind, ...] = (
    FindingKind("MEMLOCK_LIMIT", Severity.CRITICAL, "Locked memory is limited: RDMA cannot register its buffers."),
    FindingKind("OPEN_FILES_LIMIT", Severity.WARNING, "Too few open files are allowed for a large job's sockets."),
    FindingKind("CLOCK_SKEW", Severity.WARNING, "The clock is not synchronised, or is off by more than is tolerable."),
    FindingKind("DISK_FULL", Severity.CRITICAL, "A file system that jobs write to is full or nearly so."),
)

_METRICS_BY_NAME = {metric.name: metric for metric in METRICS}
_FINDINGS_BY_CODE = {kind.code: kind for kind in FINDINGS}


def metric(name: str) -> Metric:
    return _METRICS_BY_NAME[name]


def finding_kind(code: str) -> FindingKind:
    return _FINDINGS_BY_CODE[code]
