"""TCP_FALLBACK and its like in the jobs that run here: what their ranks say of themselves, judged with what the probes
know of the node. They are findings about jobs: no gate keeps the next job from a node for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from laggard.model import Finding, Report, Verdict
from laggard.nccl.transport import Transport
from laggard.probes.nccl.model.job import JobFacts
from laggard.probes.nccl.rules.rank_findings import judge_transports
from laggard.rankfile.fact_names import TRANSPORT
from laggard.wire import RankRow

_PORTS = "rdma_ports"
_NO_GPUDIRECT = ("GeForce", "GB10")  # CUDA's GPUDirect RDMA guide, "Supported systems"


class _Said(NamedTuple):
    owner: int
    job_id: str
    rank: int
    text: str


class JobTransports:
    """Judges when there is something new to judge: ranks repeat themselves at every look."""

    def __init__(self) -> None:
        self._judged: tuple[tuple[_Said, ...], Report] | None = None
        self._findings: tuple[Finding, ...] = ()

    def findings(self, rows: Iterable[RankRow], report: Report) -> tuple[Finding, ...]:
        said = tuple(sorted(_said(row) for row in rows if row.state == "running" and TRANSPORT in row.facts))
        if self._judged is None or self._judged[0] != said or self._judged[1] is not report:
            self._findings = judge(said, job_facts(report))
            self._judged = said, report
        return self._findings


def _said(row: RankRow) -> _Said:
    return _Said(row.owner, row.job_id, row.rank, json.dumps(row.facts[TRANSPORT], separators=(",", ":")))


def judge(said: Iterable[_Said], facts: JobFacts) -> tuple[Finding, ...]:
    """Pure. What is no transport is left out: the file is anybody's."""
    jobs: dict[tuple[int, str], list[Transport]] = {}
    for one in said:
        try:
            transport = Transport.from_json(one.text)
        except ValueError:
            continue
        jobs.setdefault((one.owner, one.job_id), []).append(transport._replace(rank=one.rank))
    return tuple(
        finding
        for (_, job), transports in jobs.items()
        for finding in judge_transports(job, transports, facts).findings
    )


def job_facts(report: Report) -> JobFacts:
    """What a round of probes tells of the node; None where it does not."""
    verdicts = {probe.name: probe.verdict for probe in report.probes}
    ports = _fact(report, _PORTS, "ports")
    models = _fact(report, "gpu_count", "models")
    minors = _fact(report, "gpu_count", "minors")
    return JobFacts(
        rdma=True if ports else False if verdicts.get(_PORTS) is Verdict.SKIPPED else None,
        gpudirect=False if models and all(any(no in model for no in _NO_GPUDIRECT) for model in models) else None,
        gpus=len(minors) if minors else None,
    )


def _fact(report: Report, probe: str, name: str) -> Any:
    values = report.facts.get(probe)
    return values.get(name) if isinstance(values, dict) else None
