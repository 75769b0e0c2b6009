"""Findings on the jobs that run here: ranks that use TCP in place of RDMA, and collectives that no hook sees. Pure."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import structs

from laggard.kit.words import ranks_text
from laggard.model import Finding, Report, Verdict
from laggard.nccl.transport import Transport
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.rank_findings import judge_rank_transports
from laggard.probes.probe import finding
from laggard.rankfile.fact_names import TRANSPORT, UNNAMED_COLLECTIVES, UNNAMED_REASONS
from laggard.wire.ranks import RankRow

log = logging.getLogger("laggard.agent")

_PORTS_PROBE = "rdma_ports"
_GPUS_PROBE = "gpu_count"
_NO_GPUDIRECT = ("GeForce", "GB10")  # CUDA's GPUDirect RDMA guide, "Supported systems"


class _TransportFact(NamedTuple):
    """The fact `transport` of one rank, as JSON."""

    owner: int
    job_id: str
    rank: int
    text: str


class JobTransports:
    """Judges the jobs' transports, and keeps the findings until the ranks' facts or the node's report change: ranks
    report the same facts at every scrape."""

    def __init__(self) -> None:
        self._judged: tuple[tuple[_TransportFact, ...], Report] | None = None
        self._findings: tuple[Finding, ...] = ()

    def findings(self, rows: Iterable[RankRow], report: Report) -> tuple[Finding, ...]:
        facts = tuple(sorted(_fact_of(row) for row in rows if row.state == "running" and TRANSPORT in row.facts))
        if self._judged is None or self._judged[0] != facts or self._judged[1] is not report:
            self._findings = judge(facts, hardware_facts(report))
            self._judged = facts, report
        return self._findings


def judge(facts: Iterable[_TransportFact], node: HardwareFacts) -> tuple[Finding, ...]:
    """Returns the findings of each job. Any user may have written the files: what is no transport is left out. Pure."""
    jobs: dict[tuple[int, str], list[Transport]] = {}
    for fact in facts:
        try:
            transport = Transport.from_json(fact.text)
        except ValueError:
            continue
        jobs.setdefault((fact.owner, fact.job_id), []).append(transport._replace(rank=fact.rank))
    return tuple(
        structs.replace(finding, evidence={**finding.evidence, "owner": owner})
        for (owner, job), transports in jobs.items()
        for finding in _judge_job(job, transports, node)
    )


def _judge_job(job: str, transports: list[Transport], node: HardwareFacts) -> tuple[Finding, ...]:
    try:
        return judge_rank_transports(job, transports, node).findings
    except Exception:  # what one user has written must not cost the others their ranks
        log.exception("a defect in laggard, while judging the transport of job %s", job)
        return ()


def hardware_facts(report: Report) -> HardwareFacts:
    """Returns what the probes found out about the node; None for what they did not."""
    verdicts = {probe.name: probe.verdict for probe in report.probes}
    ports = _node_fact(report, _PORTS_PROBE, "ports")
    models = _node_fact(report, _GPUS_PROBE, "models")
    minors = _node_fact(report, _GPUS_PROBE, "minors")
    return HardwareFacts(
        rdma=True if ports else False if verdicts.get(_PORTS_PROBE) is Verdict.SKIPPED else None,
        gpudirect=False if models and all(any(no in model for no in _NO_GPUDIRECT) for model in models) else None,
        gpus=len(minors) if minors else None,
    )


def _fact_of(row: RankRow) -> _TransportFact:
    return _TransportFact(row.owner, row.job_id, row.rank, json.dumps(row.facts[TRANSPORT], separators=(",", ":")))


def _node_fact(report: Report, probe: str, name: str) -> Any:
    values = report.facts.get(probe)
    return values.get(name) if isinstance(values, dict) else None


_MAX_RANKS = 64


def hook_blind_findings(rows: Iterable[RankRow]) -> tuple[Finding, ...]:
    """Returns one finding for each job and reason. Any user may have written the files: reasons that are not known are
    left out."""
    blind: dict[tuple[int, str, str], list[RankRow]] = {}
    for row in rows:
        reason = row.facts.get(UNNAMED_COLLECTIVES)
        if row.state == "running" and isinstance(reason, str) and reason in UNNAMED_REASONS:
            blind.setdefault((row.owner, row.job_id, reason), []).append(row)
    return tuple(_finding(owner, job, reason, blind[owner, job, reason]) for owner, job, reason in sorted(blind))


def _finding(owner: int, job: str, reason: str, rows: list[RankRow]) -> Finding:
    wrong, fix = UNNAMED_REASONS[reason]
    ranks = sorted({row.rank for row in rows})
    return finding(
        "HOOK_BLIND",
        f"job {job}",
        f"collectives that C++ makes are not recorded on {ranks_text(ranks)}: {wrong}",
        evidence={"owner": owner, "ranks": ranks[:_MAX_RANKS], "reason": reason, "lost": sum(row.lost for row in rows)},
        fix=fix[0].upper() + fix[1:] + ".",
    )
