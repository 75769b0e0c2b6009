"""The ranks from which NCCL RAS has no answer: dead, stopped, or only silent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.locate.hang.launched_job import (
    STOPPED_CONFIDENCE,
    Device,
    LaunchedJob,
    device_of,
    gpu_of,
    others,
    processes_text,
    ranks_of,
)
from laggard.locate.partial_verdict import PartialVerdict
from laggard.model import Culprit, Note
from laggard.text.words import ranks_text, seconds_text
from laggard.wire.ras import RasRank

DEAD_CONFIDENCE = 0.7
"""The confidence that a process is dead which NCCL calls so. NCCL calls a process dead that it has not reached for 60
s: the network can be the cause."""
GONE_CONFIDENCE = 0.9
CUT_OFF_CONFIDENCE = 0.4
"""The confidence where half of the ranks or more are missing: the network between the halves may be the cause."""


def missing_peers(job: LaunchedJob) -> PartialVerdict:
    """The ranks that NCCL RAS has no answer from. A communicator that ranks have begun to leave has such, too."""
    gone: dict[tuple[str, str], dict[Device, RasRank]] = {}
    for communicator in job.report.communicators:
        if communicator.ending or communicator.starting:
            continue
        for rank in communicator.ranks:
            if rank.missing and (kind := _missing_kind(rank)):
                gone.setdefault((kind, rank.host), {}).setdefault(device_of(rank), rank)
    culprits = [
        _missing_culprit(job, kind, host, members)
        for (kind, host), members in sorted(gone.items())
        if kind != "unresponsive"
    ]
    notes = [_unresponsive_note(job, host, members) for (kind, host), members in gone.items() if kind == "unresponsive"]
    return PartialVerdict(tuple(culprits), tuple(notes))


def _missing_kind(rank: RasRank) -> str:
    """The state of the process: dead, stopped, unresponsive; empty where nothing is wrong with it. What the agent sees
    of the process itself goes before what NCCL concludes."""
    if rank.process == "gone":
        return "dead"
    if rank.process == "stopped":
        return "stopped" if rank.readings > 1 else "unresponsive"
    if rank.dead and rank.process != "running":
        return "dead"
    return "unresponsive" if rank.unresponsive or rank.dead else ""


def _missing_culprit(job: LaunchedJob, kind: str, host: str, members: Mapping[Device, RasRank]) -> Culprit:
    seen_gone = all(rank.process == "gone" for rank in members.values())
    cut_off = 2 * sum(rank.missing for rank in job.world.ranks) >= job.world.size
    confidence = GONE_CONFIDENCE if seen_gone else CUT_OFF_CONFIDENCE if cut_off else DEAD_CONFIDENCE
    evidence = [_how_text(kind, seen_gone), processes_text(members)]
    if kind == "dead" and not seen_gone and cut_off:
        evidence.append("half of the ranks or more are not reached: the network between the two parts may be the cause")
    return Culprit(
        kind="dead" if kind == "dead" else "hung",
        ranks=ranks_of(job, members),
        node=job.node(host),
        gpu=gpu_of(members),
        confidence=STOPPED_CONFIDENCE if kind == "stopped" else confidence,
        evidence=tuple(evidence),
        victims=others(job, members),
        stopped=kind == "stopped",
    )


def _how_text(kind: str, seen_gone: bool) -> str:
    if kind == "stopped":
        return "its process is stopped, by a signal or a debugger, as the agent there sees"
    if seen_gone:
        return "its process is gone, as the agent there sees"
    return "NCCL RAS considers its process dead: it has not reached it for 60 s"


def _unresponsive_note(job: LaunchedJob, host: str, members: Mapping[Device, RasRank]) -> Note:
    ranks = ranks_of(job, members)
    longest = max(rank.unchanged_seconds for rank in members.values())
    since = f" for {seconds_text(longest)}" if longest else ""
    text = f"{ranks_text(ranks) or 'a rank'} on {job.node(host)} does not answer NCCL RAS{since}"
    return Note("unresponsive", text, ranks, job.node(host))
