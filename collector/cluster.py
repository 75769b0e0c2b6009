"""The nodes as a round found them: their rows, what they and comparing them found, and which of them fail."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from laggard.collector import fleet
from laggard.collector.agent_state import AgentState
from laggard.collector.discovery import Discovery
from laggard.collector.evaluators import Evaluator
from laggard.collector.incidents.identity import with_returns
from laggard.collector.incidents.incident import Fault
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.jobs.unseen import UnseenOn
from laggard.collector.node_findings import codes_by
from laggard.collector.outliers import FleetComparison, with_codes
from laggard.collector.prometheus.watch import PrometheusWatch
from laggard.collector.settings import CollectorSettings
from laggard.model import Finding, Severity
from laggard.wire.nodes import NodeFinding

_SEVERITIES = tuple(Severity)


class Round(NamedTuple):
    """A round of scrapes: its number, when it began and when its answers were there (monotonic seconds), and what came
    of comparing the nodes."""

    number: int
    began: float
    now: float
    comparison: FleetComparison


class Cluster:
    """Remembers since when nodes fail. One round follows the other."""

    def __init__(self, settings: CollectorSettings, discovery: Discovery) -> None:
        self._settings, self._discovery = settings, discovery
        self._failing = fleet.FailingSince()

    def snapshot(
        self,
        agents: Sequence[AgentState],
        view: Round,
        faults: Sequence[Fault],
        watch: PrometheusWatch | Evaluator | None,
    ) -> ClusterSnapshot:
        """The cluster without its jobs."""
        wall, now, settings, found = time.time(), view.now, self._settings, self._discovery.found
        comparison, reporting = view.comparison, [agent for agent in agents if agent.report]
        of_nodes = [NodeFinding(it.url, it.name, finding) for it in reporting for finding in _of_report(it)]
        of_jobs = (NodeFinding(it.url, it.name, finding) for it in agents for finding in it.job_findings)
        findings = with_returns((*of_nodes, *of_jobs, *comparison.findings), faults)
        codes = codes_by(comparison.findings, lambda it: it.url)
        self._failing = failing = fleet.failing_since(
            self._failing, of_nodes, now, [agent.name for agent in reporting]
        )  # jobs' drain no node
        answering = sum(agent.state == "up" for agent in agents)
        together = fleet.fleet_wide_codes(failing, answering, settings.fleet_wide_ratio, settings.max_drain_ratio)
        reads = {agent.url: read for agent in agents if (read := agent.read)}
        return ClusterSnapshot(
            nodes=tuple(with_codes(agent.row(now), codes) for agent in agents),
            ignored="; ".join(agent.ignored for agent in agents if agent.ignored),
            findings=_worst_first(findings),
            fleet_wide=together,
            failing_together=fleet.for_that_alone(failing, together),
            waiting_seconds=fleet.waiting_seconds(failing, together, settings.max_drains_per_hour, now),
            last_failed=frozenset(node for node, _ in failing.began),
            failing_since={node: wall - now + at for node, at in failing.first.items() if at is not None},
            fleet_findings=comparison.findings,
            fleet_notes=(
                *fleet.fleet_wide_notes(together, answering),
                *found.notes,
                *comparison.notes,
                *(watch.notes if watch else ()),
            ),
            skipped={url: it.skipped for url, it in reads.items()},
            unseen=tuple(_unseen(agents)),
            gpus={url: it.gpus for url, it in reads.items()},
            out={agent.name: found.out[agent.target] for agent in agents if agent.target in found.out},
            labels={target.url: labels for target, labels in found.labels.items()},
            job_users={it.name: fleet.job_users(it.report.facts) for it in agents if it.report},
            rounds=view.number,
            scraped_at=now,
            round_began_at=view.began,
            evaluators=watch.live if isinstance(watch, Evaluator) else None,
        )


def _of_report(agent: AgentState) -> Sequence[Finding]:
    return agent.report.findings if agent.report else ()


def _unseen(agents: Iterable[AgentState]) -> Iterator[UnseenOn]:
    for agent in agents:
        if agent.state == "up":
            yield from (UnseenOn(process, agent.name, agent.url) for process in agent.unseen)


def _worst_first(found: Iterable[NodeFinding]) -> tuple[NodeFinding, ...]:
    return tuple(sorted(found, key=lambda it: (_SEVERITIES.index(it.finding.severity), it.node, it.finding.code)))
