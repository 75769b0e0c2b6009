"""The part of the cluster that a user may see: their own jobs, and of their nodes and findings what no other user
owns. Pure.

It is decided by values, such as a job's owner or a neighbour's, and never by looking for names in text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import structs

from laggard.catalogue import findings
from laggard.catalogue.findings import FindingType, known_type
from laggard.collector.incidents.incident import Incident
from laggard.collector.jobs.holdings import NotHeld
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.node_findings import codes_by
from laggard.collector.tenants import Viewer
from laggard.locate.slow.host_facts import neighbours_text
from laggard.model import HIDDEN, CpuNeighbour, Culprit, Finding, Fix, Location
from laggard.recording.writer import JobRecording
from laggard.wire.accepted import without_mark
from laggard.wire.nodes import NodeFinding, NodeRow
from laggard.wire.ranks import RankRow

# The parts that a user may read of the findings on a node that others may share. Pure.
#
# A finding's words and evidence are free text and values of a probe. Some name processes, users, jobs, paths or other
# nodes. So the head of each code's page says what is shown; of a code that has none nothing is.

ELSEWHERE: Final = "this node"


def shown_to(found: NodeFinding, uid: int) -> NodeFinding | None:
    """The part that user `uid` may read of a finding on a node of their job; None: nothing."""
    found = structs.replace(found, finding=without_mark(found.finding))  # root's own words
    known = known_type(found.finding.code)
    if known is None:
        return None
    match known.shown:
        case findings.WHOLE:
            return found
        case findings.OWNER if _is_of(found.finding, uid):
            return found
        case findings.DEVICE:
            return structs.replace(found, finding=_in_catalogue_words(found.finding, known, found.finding.device))
        case findings.CODE:
            return structs.replace(found, finding=_in_catalogue_words(found.finding, known, ELSEWHERE))
    return None


def _is_of(finding: Finding, uid: int) -> bool:
    owner = finding.evidence.get("owner")
    return type(owner) is int and owner == uid


def _in_catalogue_words(finding: Finding, known: FindingType, device: str) -> Finding:
    """The finding with nothing of what the node's agent says about it but code, severity and device."""
    return Finding(
        code=finding.code,
        severity=finding.severity,
        device=device,
        summary=known.summary,
        evidence={},
        fix=Fix("Tell an operator of the cluster, who sees the evidence."),
        doc=finding.doc,
        action=known.action,
    )


Codes = Mapping[str, tuple[str, ...]]


class _Own(NamedTuple):
    """A user's jobs, the URLs of the agents that report them, and what may be read of findings there."""

    uid: int
    jobs: tuple[JobSnapshot, ...]
    agents: frozenset[str]
    findings: tuple[NodeFinding, ...]


def visible(snapshot: ClusterSnapshot, viewer: Viewer) -> ClusterSnapshot:
    """`snapshot` with what the viewer may see. A field that is added to ClusterSnapshot is empty here until it is dealt
    with."""
    if viewer.uid is None:
        return snapshot
    own = _own(snapshot, viewer.uid)
    codes = codes_by(own.findings, lambda it: it.node)
    return ClusterSnapshot(
        nodes=tuple(_row(row, own) for row in snapshot.nodes if row.url in own.agents),
        findings=own.findings,
        fleet_findings=_shown(snapshot.fleet_findings, own.agents, viewer.uid),
        jobs=tuple(dataclasses.replace(job, location=_location(job.location, viewer.uid, codes)) for job in own.jobs),
        rounds=snapshot.rounds,
        scraped_at=snapshot.scraped_at,
        round_began_at=snapshot.round_began_at,
        round_seconds=snapshot.round_seconds,
        not_held=_not_held(snapshot.not_held, viewer.uid),
        only_of=f"user {viewer.name}",
        unseen=tuple(each for each in snapshot.unseen if each.process.owner == viewer.uid),
    )


def visible_recording(recording: JobRecording, snapshot: ClusterSnapshot, uid: int) -> JobRecording:
    """A recording of the user's own job, without what its ranks' rows and findings tell of others. `snapshot`: as they
    see it."""
    held = recording.findings_by_node
    shown = {row.node: row.findings for row in snapshot.nodes if row.node}
    found = {node: held[node].only(codes) for node, codes in shown.items() if node in held}
    rows = {rank: _rank_row(row, uid) for rank, row in recording.newest_rows.items()}
    return recording._replace(newest_rows=rows, findings_by_node=found)


def visible_incident(incident: Incident, uid: int) -> Incident:
    """An incident of the user's own job, without what it tells of others: a measurement of its node names peers."""
    return structs.replace(
        incident,
        opened_as=_kept(incident.opened_as, uid),
        culprit=_kept(incident.culprit, uid),
        confirmation=None,
    )


def _own(snapshot: ClusterSnapshot, uid: int) -> _Own:
    jobs = tuple(job for job in snapshot.jobs if job.key.owner == uid)
    agents = frozenset(url for job in jobs for url in job.agents)
    return _Own(uid, jobs, agents, _shown(snapshot.findings, agents, uid))


def _shown(findings: Iterable[NodeFinding], agents: frozenset[str], uid: int) -> tuple[NodeFinding, ...]:
    shown = (shown_to(found, uid) for found in findings if found.url in agents)
    return tuple(found for found in shown if found is not None)


def _row(row: NodeRow, own: _Own) -> NodeRow:
    """`reason` may quote an agent's answer, and `ring_pairs` names other nodes."""
    ranks = {
        int(rank)
        for job in own.jobs
        if row.url in job.agents
        for rank, node in zip(job.timings.ranks, job.timings.nodes, strict=True)
        if node == row.node
    }
    findings = dict.fromkeys(found.finding.code for found in own.findings if found.url == row.url)
    return NodeRow(
        url=row.url,
        node=row.node,
        state=row.state,
        reason="",
        last_seen_seconds=row.last_seen_seconds,
        verdict=row.verdict,
        findings=tuple(findings),
        ranks=tuple(sorted(ranks)),
        ring_age_seconds=row.ring_age_seconds,
    )


def _not_held(found: NotHeld, uid: int) -> NotHeld:
    ranks = {key: count for key, count in found.ranks.items() if key.owner == uid}
    return NotHeld(ranks, frozenset(key for key in found.unseen if key.owner == uid), found.limits)


def _location(location: Location, uid: int, codes: Codes) -> Location:
    return structs.replace(location, culprits=tuple(_culprit(it, uid, codes) for it in location.culprits))


def _culprit(culprit: Culprit, uid: int, codes: Codes) -> Culprit:
    seen = {code for machine in culprit.machines for code in codes.get(machine, ())}
    findings = tuple(code for code in culprit.findings if code in seen)
    return structs.replace(_without_names(culprit, uid), findings=findings)


def _kept(culprit: Culprit, uid: int) -> Culprit:
    """A culprit from the database: of a slow host without `neighbours` nobody knows whom its evidence names."""
    if culprit.kind == "slow_host" and culprit.neighbours is None:
        return structs.replace(culprit, evidence=())
    return _without_names(culprit, uid)


def _without_names(culprit: Culprit, uid: int) -> Culprit:
    """Tells that a neighbour takes the core, but not whose process it is or which."""
    if not culprit.neighbours:
        return culprit
    hidden = _hidden(culprit.neighbours, uid)
    ending = neighbours_text(culprit.neighbours)
    evidence = tuple(
        line.removesuffix(ending) + neighbours_text(hidden) if line.endswith(ending) else line
        for line in culprit.evidence
    )
    if evidence == culprit.evidence and hidden != culprit.neighbours:  # cut short: the names may be in any line
        evidence = ()
    return structs.replace(culprit, evidence=evidence, neighbours=hidden)


def _rank_row(row: RankRow, uid: int) -> RankRow:
    if not row.cpu_wait:
        return row
    neighbours = _hidden(row.cpu_wait.neighbours, uid)
    return structs.replace(row, cpu_wait=structs.replace(row.cpu_wait, neighbours=neighbours))


def _hidden(neighbours: Iterable[CpuNeighbour], uid: int) -> tuple[CpuNeighbour, ...]:
    return tuple(it if it.owner == uid else CpuNeighbour(HIDDEN, HIDDEN, it.seconds) for it in neighbours)
