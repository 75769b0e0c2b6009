"""The source from which the web handlers read: the scrape loop, or what one user may see of it. And exclusions, a
machine's history and a job's situation from it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from laggard.collector.fleet import Suspicion, exclusions_document
from laggard.collector.incidents.history import IncidentHistory
from laggard.collector.incidents.incident import MAX_LIMIT, Incident, IncidentQuery
from laggard.collector.jobs.job import JobStacks
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.node_history import MAX_FAULTS, NodeHistoryDocument, history_of_rows
from laggard.collector.scrape.collective_rounds import LookedRank
from laggard.model import JobKey
from laggard.recommend.advice.situation import Situation, with_job
from laggard.recording.writer import JobRecording
from laggard.wire.digest import Digest
from laggard.wire.exclusion import ExclusionsDocument
from laggard.wire.stacks import StacksAsked


class ClusterSource(Protocol):
    @property
    def snapshot(self) -> ClusterSnapshot:
        """The latest snapshot. It is replaced as a whole after each round: a handler that reads it once sees one
        round."""

    @property
    def why_not_ready(self) -> str:
        """The reason why clients are to ask another collector, or later; empty where there is none."""

    @property
    def incidents(self) -> IncidentHistory: ...

    async def refresh(self) -> bool:
        """Returns when the snapshot is at most about a second old, or, with False, when that takes too long."""

    def look_at(self, node: str) -> None:
        """The node's agent is to be asked for its report soon; to be called on the event loop."""
        return

    def looked_at(self, key: JobKey, ranks: Sequence[int]) -> Mapping[int, LookedRank]:
        """A reader looks at these ranks: returns what is known of their single collectives. Their agents are asked for
        these from the next round on, while somebody looks. To be called from any thread."""

    async def digest(self, name: str | None, run: str) -> Digest | None:
        """The digest of a job now, of its first hour, or of an earlier run; to be called on the event loop."""

    def stacks(self, key: JobKey) -> JobStacks | None:
        """The newest stacks that are held of the job's ranks; None where it is not known."""

    async def ask_for_stacks(
        self, key: JobKey, ranks: Sequence[int], samples: int, seconds: float
    ) -> StacksAsked | None:
        """Asks ranks of the job for their stacks, all where none is named; None where it is not known."""
        return None

    def recording(self, name: str | None) -> JobRecording | None:
        """The recording of what is held of a job; to be called on the event loop."""


def exclusions(source: ClusterSource, max_drain_ratio: float, seconds: float) -> ExclusionsDocument:
    """`seconds`: for how long a node is left out after it was last named."""
    now = time.time()
    return exclusions_document(
        source.snapshot,
        map(_suspicion, source.incidents.suspects(now - seconds)),
        source.incidents.confirmations(),
        max_drain_ratio,
        seconds,
        now,
    )


def _suspicion(it: Incident) -> Suspicion:
    return Suspicion(it.id, it.key, it.culprit, it.what, it.opened_at, it.seen_at, it.most_recoverable_ratio)


def node_history_of(incidents: IncidentHistory, node: str, now: float) -> NodeHistoryDocument:
    """The history of the machine that has this name now, under the names that it had before, too."""
    query = IncidentQuery(node=node, limit=MAX_LIMIT)

    def of_name(name: str) -> tuple[Incident, ...]:
        return incidents.document(query._replace(node=name)).incidents

    return history_of_rows(node, incidents.machine(node, MAX_FAULTS), of_name, now, incidents.told_state())


def situation_of(snapshot: ClusterSnapshot, name: str | None) -> Situation:
    """Returns the findings of the job's nodes, its culprits and its profile; without a job all nodes' findings."""
    job = snapshot.job(name)
    if job is None:
        return Situation(findings=tuple(each.finding for each in snapshot.findings))
    nodes = {node for node in job.timings.nodes if node}
    findings = tuple(each.finding for each in snapshot.findings if not nodes or each.node in nodes)
    known = Situation(findings=findings, torch_variables=job.environment)
    return with_job(known, job.timings, job.location.culprits)
