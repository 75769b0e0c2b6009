"""The collector's view after one round: an immutable value that every page and document is made from."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import structs

from laggard.collector.jobs.job import Job, JobKey
from laggard.collector.jobs.window import Windows
from laggard.collector.locate.job_timings import Evidence
from laggard.collector.node_finding import NodeFinding
from laggard.model import Location, Note, Severity, Verdict, Window
from laggard.wire import NodeRow

log = logging.getLogger("laggard.collector")

Locate = Callable[[Evidence], Location]


@dataclasses.dataclass(frozen=True)
class JobPicture:
    key: JobKey
    running: bool
    evidence: Evidence
    location: Location


@dataclasses.dataclass(frozen=True)
class Picture:
    """`rounds`: how many times the agents were asked. `asked_at`, `taken_at`: when a round began and when its answers
    were there, monotonic seconds. Jobs: the likeliest first.
    `findings`: the nodes' own and those of comparing them (`fleet_findings` alone), worst first."""

    nodes: tuple[NodeRow, ...]
    ignored: str = ""
    findings: tuple[NodeFinding, ...] = ()
    fleet_findings: tuple[NodeFinding, ...] = ()
    fleet_notes: tuple[Note, ...] = ()
    jobs: tuple[JobPicture, ...] = ()
    rounds: int = 0
    taken_at: float | None = None
    asked_at: float | None = None

    def job(self, name: str | None) -> JobPicture | None:
        """The job of that key or id, else None; with no name the job that progressed last."""
        for job in self.jobs:
            if not name or name in (str(job.key), job.key.job_id):
                return job
        return None

    def location(self, name: str | None) -> Location:
        job = self.job(name)
        if job is not None:
            return job.location
        if self.jobs:
            known = ", ".join(job.key.job_id for job in self.jobs[:8])
            return unknown("no_such_job", f"no job {name} is known; known: {known}", name)
        return unknown(*why_nothing(self.nodes, self.ignored))


def paint(windows: Windows, picture: Picture, locate: Locate) -> Picture:
    """`picture` with its jobs looked at. Pure but for the log; may take seconds, so not for the event loop."""
    answering = {row.url for row in picture.nodes if row.state == "up"}
    by_node = _codes_by_node(picture.findings)
    ordered = sorted(windows.jobs.items(), key=lambda item: item[1].recency, reverse=True)
    jobs = []
    for key, job in ordered:
        evidence = job.evidence(key.job_id, answering, by_node)
        location = _locate(evidence, locate) if job.sources & answering else _unheard(evidence, job)
        jobs.append(JobPicture(key, job.running, evidence, _with_notes(location, job, picture.nodes)))
    return dataclasses.replace(picture, jobs=tuple(jobs))


def unknown(kind: str, text: str, job_id: str | None = None, world_size: int = 0, ranks_seen: int = 0) -> Location:
    note = Note(kind=kind, text=text)
    return Location(Verdict.UNKNOWN, job_id, world_size, ranks_seen, Window(), None, (), (note,))


def why_nothing(nodes: Sequence[NodeRow], ignored: str = "") -> tuple[str, str]:
    """The kind and text of the note that says why no rank is known."""
    states = Counter(row.state for row in nodes)
    if not nodes:
        return "no_targets", "no agent was named; give one with --target HOST:PORT"
    if states["waiting"] == len(nodes):
        return "waiting", "the agents have not been asked yet"
    if not states["up"]:
        ill = ", ".join(f"{count} of {len(nodes)} {state}" for state, count in states.most_common())
        return "no_agent", f"no agent answers ({ill})"
    up, total = states["up"], len(nodes)
    agents = f"{up} of {total} agents" if up < total else f"{total} agent{'' if total == 1 else 's'}"
    answer = f"{agents} answer{'s' if up == 1 else ''}"
    if ignored:
        return "ranks_ignored", f"{answer}, but the rank files there are not believed: {ignored}"
    return "no_ranks", f"{answer}, but no training process with laggard's hooks runs there; start it under laggard run"


def _locate(evidence: Evidence, locate: Locate) -> Location:
    try:
        return locate(evidence)
    except Exception as error:  # one job that the analysis trips over leaves the others their verdict
        log.exception("the analysis of job %r failed", evidence.job_id)
        text = f"the analysis failed, a defect in laggard: {type(error).__name__}: {error}"
        return unknown("defect", text, evidence.job_id, evidence.world_size, len(evidence.ranks))


def _unheard(evidence: Evidence, job: Job) -> Location:
    text = f"no agent of this job answers ({len(job.sources)} of {len(job.sources)} silent)"
    return unknown("no_agent", text, evidence.job_id, evidence.world_size, len(evidence.ranks))


def _with_notes(location: Location, job: Job, nodes: Sequence[NodeRow]) -> Location:
    """What the analysis cannot know: which agents are silent, and that the job has ended."""
    notes = list(location.notes)
    silent = [row for row in nodes if row.url in job.sources and row.state != "up"]
    if silent and location.verdict is not Verdict.UNKNOWN:
        names = ", ".join(f"{row.node or row.url} ({row.state})" for row in silent[:4])
        more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
        notes.append(Note(kind="agents_silent", text=f"not heard of any more: {names}{more}"))
    if not job.running:
        notes.append(Note(kind="ended", text="the job has ended; these were its last steps"))
    return structs.replace(location, notes=tuple(notes))


def _codes_by_node(findings: Sequence[NodeFinding]) -> dict[str, tuple[str, ...]]:
    codes: dict[str, dict[str, None]] = {}
    for found in findings:
        if found.finding.severity is not Severity.INFO:
            codes.setdefault(found.node, {})[found.finding.code] = None
    return {node: tuple(of_node) for node, of_node in codes.items()}
