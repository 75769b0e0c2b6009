"""The sights that the trackers look at in a round, made from the agents' reports and the jobs' verdicts. Pure.

A report is an agent's word, and may hold anything: what cannot be read is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from laggard.collector.finding_places import NodeGpus
from laggard.collector.incidents.fault import MAX_REPORTED, NodeSight, SeenFinding
from laggard.collector.incidents.tracker import Observation
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.locate.node_findings import UNLISTED, UNNAMED
from laggard.model import Finding, Report, Severity, Verdict

_XIDS: Final = "gpu_xid"
_XID_CODE: Final = "GPU_XID"
_TAKEN_BACK: Final = "xids_taken_back"
"""The fact of the Xid probe that counts the Xids which a later one took back."""


def node_sight(node: str, report: Report) -> NodeSight:
    """The faults that a node's report tells of."""
    gpus = NodeGpus.of(report.facts)
    probes = {place: probe.name for probe in report.probes for place in probe.findings}
    found = tuple(
        SeenFinding(finding, probes.get(place, ""), _gpu(gpus, finding.device), _detail(finding))
        for place, finding in enumerate(report.findings[:MAX_REPORTED])
        if finding.severity is not Severity.INFO
    )
    telling = frozenset(it.name for it in report.probes if it.verdict in (Verdict.OK, Verdict.FAIL) and not it.unknown)
    return NodeSight(node, frozenset(gpus.uuids), found, telling | {""}, _taken_back(report.facts))


def _gpu(gpus: NodeGpus, device: str) -> str:
    about = gpus.about(device) or ()
    return about[0] if len(about) == 1 and about[0] not in (UNLISTED, UNNAMED) else ""


def _detail(finding: Finding) -> str:
    """The number of an Xid or SXid."""
    number = finding.evidence.get("xid", finding.evidence.get("sxid")) if finding.code == _XID_CODE else None
    return str(number) if isinstance(number, int) else ""


def _taken_back(facts: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """The Xids that later ones took back."""
    told = facts.get(_XIDS)
    numbers = told.get(_TAKEN_BACK) if isinstance(told, dict) else None
    return frozenset((_XID_CODE, str(number)) for number in numbers) if isinstance(numbers, dict) else frozenset()


def observation(job: JobSnapshot) -> Observation:
    it = job.location
    return Observation(
        job.key,
        job.running,
        it.verdict in (Verdict.OK, Verdict.FAIL),
        it.culprits,
        job.progressed_at,
        max(it.world_size, it.ranks_seen),
        it.slowdown_ratio,
        job.told,
    )
