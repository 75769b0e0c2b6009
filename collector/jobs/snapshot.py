"""The cluster after one round of scrapes: an immutable value from which every page and document is made."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec import structs

from laggard.collector.jobs.holdings import NotHeld
from laggard.collector.jobs.job import Job, RankWindow, Run
from laggard.collector.jobs.unseen import UnseenJob, UnseenOn, starting, starting_text, unseen_jobs
from laggard.collector.jobs.window import JobWindows
from laggard.collector.node_findings import NodeGpus, failing_note, findings_by_node
from laggard.collector.targets import JobUsers, NodeLabels, NodeOut
from laggard.kit.words import counted, joined, listed, natural, printable_line, ranks_text
from laggard.locate.hang.launches import LaunchedJob, locate_launches, no_timings
from laggard.locate.job_timings import JobTimings, NodeFindings, live_timings
from laggard.locate.stacked import located, with_stacks
from laggard.model import MAX_NAMED_RANKS, Culprit, JobKey, Location, Note, Verdict, Window
from laggard.rankfile.fact_names import SCRIPT, STARTED
from laggard.wire.job_words import is_numbered
from laggard.wire.nodes import NodeFinding, NodeRow

log = logging.getLogger("laggard.collector")

Locate = Callable[[JobTimings], Location]

STOPPING: Final = ("hung", "dead")
"""The kinds of culprits for which the whole job stands still."""


def shares(culprits: Sequence[Culprit], slowdown_ratio: float | None) -> list[float]:
    """The share of the job's time that each takes, at most 1 in all. While one stops the job, it takes everything, and
    several take equal parts. Of slow ones each takes its recoverable_ratio; together they take no more than the verdict
    says that all of them do, 1 - 1 / slowdown_ratio, where no single one takes more."""
    stopping = [culprit.kind in STOPPING for culprit in culprits]
    if any(stopping):
        return [1 / sum(stopping) if stops else 0.0 for stops in stopping]
    wanted = [min(max(culprit.recoverable_ratio or 0.0, 0.0), 1.0) for culprit in culprits]
    together = 1 - 1 / slowdown_ratio if slowdown_ratio and slowdown_ratio > 1 else 1.0
    most = max(together, max(wanted, default=0.0))
    scale = min(1.0, most / sum(wanted)) if sum(wanted) > 0 else 1.0
    return [share * scale for share in wanted]


@dataclasses.dataclass(frozen=True)
class JobSnapshot:
    """`progressed_at`: when any of its ranks last got on, Unix time by its node's clock; 0: not known. `script` and
    `started_at` (Unix time by a node's clock): as its first rank says; empty and None from hooks that do not say.
    `agents`: the URLs of those that report it. `first_hour_ratio`: how long its step takes over its first hour's.
    `environment`: what surrounds its ranks, by name, as they told a minute ago at most; empty before that. `told`:
    whether it has ended, or somebody told in this round of a rank of it that runs; else it is as it was when somebody
    last did. `elsewhere`: whether it is another evaluator's to judge. `seen_once`: those of its culprits that no other
    steps have shown than those that accused them first. `attempt`: an elastic restart raises it."""

    key: JobKey
    running: bool
    timings: JobTimings
    location: Location
    progressed_at: float = 0.0
    script: str = ""
    started_at: float | None = None
    agents: frozenset[str] = frozenset()
    first_hour_ratio: float | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    told: bool = True
    elsewhere: bool = False
    seen_once: tuple[Culprit, ...] = ()
    attempt: int = 0

    @property
    def lost_ranks(self) -> float:
        """The culprits cost as much as if so many ranks did nothing."""
        return self.location.ranks_seen * sum(shares(self.location.culprits, self.location.slowdown_ratio))

    @property
    def urgency(self) -> tuple[bool, bool, float]:
        """The least comes first: a job that runs and has a culprit, of several the one that loses most; then those that
        run. All that have ended are alike: a question that names none is about the last."""
        if not self.running:
            return True, True, 0.0
        return False, self.location.verdict is not Verdict.FAIL, -self.lost_ranks


class Calm(Protocol):
    """The jobs that need not be judged in each round (held_verdicts.py)."""

    def still(self, key: JobKey, job: Job, answering: Collection[str]) -> JobSnapshot | None: ...

    def judged(self, snapshot: JobSnapshot, run: Run) -> None: ...


@dataclasses.dataclass(frozen=True)
class ClusterSnapshot:
    """`ignored` says which rank files the agents rejected. `findings` are the nodes' own and those of comparing the
    nodes (`fleet_findings` alone), worst first. `jobs` has those first that run, the newest first.
    `rounds` counts the scrapes; `round_began_at` and `scraped_at` are when the last one began and when its answers were
    there, in monotonic seconds; `round_seconds` is how long it took, with the analysis. `only_of`: the user whose view
    of the cluster this is; empty: everything. `skipped`: by agent's URL, how many of its checks judged nothing and
    why. `gpus`: by agent's URL, the GPUs of its node. `fleet_wide`: the codes that so many nodes have at once, and
    `failing_together` the nodes that fail for nothing else. `waiting_seconds`: how long a failing node is to wait until
    it may be drained. `last_failed`: the nodes whose last report has something critical, whether or not their agents
    answer now. `failing_since`: when each of them began to fail, Unix time, where this collector saw it. `labels`: by
    agent's URL, its node's place in the site. `out`: the nodes to which the scheduler gives no jobs. `job_users`:
    by node, whose jobs failed at once there within an hour, and whose ran. `evaluators`: how many collectors share the
    jobs of a Prometheus; None where none do."""

    nodes: tuple[NodeRow, ...]
    ignored: str = ""
    findings: tuple[NodeFinding, ...] = ()
    fleet_findings: tuple[NodeFinding, ...] = ()
    fleet_notes: tuple[Note, ...] = ()
    jobs: tuple[JobSnapshot, ...] = ()
    rounds: int = 0
    scraped_at: float | None = None
    round_began_at: float | None = None
    round_seconds: float | None = None
    not_held: NotHeld = NotHeld()
    only_of: str = ""
    unseen: tuple[UnseenOn, ...] = ()
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: Mapping[str, NodeGpus] = dataclasses.field(default_factory=dict)
    fleet_wide: Mapping[str, int] = dataclasses.field(default_factory=dict)
    failing_together: frozenset[str] = frozenset()
    waiting_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    last_failed: frozenset[str] = frozenset()
    failing_since: Mapping[str, float] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, NodeLabels] = dataclasses.field(default_factory=dict)
    out: Mapping[str, NodeOut] = dataclasses.field(default_factory=dict)
    job_users: Mapping[str, JobUsers] = dataclasses.field(default_factory=dict)
    evaluators: int | None = None

    def job(self, name: str | None) -> JobSnapshot | None:
        """The job with that key or name; without one the most urgent, of several the one that progressed last.
        None where there is none, where several users have a job of that name, and without a name where none runs and
        another is about to."""
        if not name:
            first = min(self.jobs, key=lambda job: job.urgency, default=None)
            return first if first is None or first.running or not self._starting else None
        found = self._named(name)
        return found[0] if len(found) == 1 else None

    def ambiguity(self, name: str | None) -> str:
        """One line with the choices where several jobs have that name; empty where it is clear."""
        found = self._named(name) if name else ()
        if len(found) < 2:
            return ""
        choices = listed([str(job.key) for job in found], _NAMED_JOBS)
        if any(job.key.job_id != found[0].key.job_id for job in found):
            return f"{len(found)} jobs are called so, {name}; ask for one of them: {choices}"
        return f"{len(found)} users have a job named {name}; ask for one of them as UID:NAME: {choices}"

    def location(self, name: str | None) -> Location:
        """The verdict on the job that job() finds; verdict `unknown`, with the reason, where it finds none."""
        job = self.job(name)
        location = job.location if job else unknown_location(*self._why_no_job(name))
        return structs.replace(location, notes=(*location.notes, *self._notes_of_cluster()))

    def _notes_of_cluster(self) -> Iterator[Note]:
        """The notes that any answer should have: the nodes that fail where no job runs that would show it, to those who
        see the whole cluster; and what there is no room for."""
        failing = None if self.only_of or any(job.running for job in self.jobs) else self._failing
        if failing is not None:
            yield failing
        not_held = self.not_held.text()
        if not_held:
            yield Note(kind="not_held", text=not_held)

    @functools.cached_property
    def _starting(self) -> tuple[UnseenOn, ...]:
        """The processes that have begun and made no step yet, where no job runs."""
        return tuple(starting(self.unseen, {job.key: job.running for job in self.jobs}))

    @functools.cached_property
    def _failing(self) -> Note | None:
        return failing_note(self.nodes, self.findings)

    def _named(self, name: str) -> Sequence[JobSnapshot]:
        """The jobs of that key or name; else those that a launcher numbered and that have such a script, or whose
        number begins so: a name that somebody gave is asked for as a whole."""
        key = JobKey.parse(name)
        exact = [job for job in self.jobs if (job.key.job_id == name if key is None else job.key == key)]
        if exact:
            return exact
        text = name if key is None else key.job_id
        own = [job for job in self.jobs if is_numbered(job.key.job_id) and (key is None or job.key.owner == key.owner)]
        return [job for job in own if job.script == text] or [job for job in own if _begins(job.key.job_id, text)]

    def _why_no_job(self, name: str | None) -> tuple[str, str, str | None]:
        """The kind and the text of the note that says so, and the name that was asked for."""
        if ambiguity := self.ambiguity(name):
            return "ambiguous_job", ambiguity, name
        if self._starting and (not name or any(name in _names_of(each) for each in self._starting)):
            ended = _name_text(self.jobs[0]) if self.jobs and not name else ""
            return "starting", starting_text(self._starting, ended), name
        unseen = [key for key in self.not_held.unseen if name and name in (str(key), key.job_id)]
        if unseen:
            text = f"job {unseen[0]} runs and is not watched: {self.not_held.limits_text()}"
            return "job_not_held", text, name
        if self.only_of and not self.jobs:
            return "no_own_job", f"no job of {self.only_of} is known, and no other is shown to them", name
        silent = [row for row in self.nodes if row.state != "up"]
        down = f"{len(silent)} of {counted(len(self.nodes), 'agent')} do not answer" if silent else ""
        if self.jobs and name:
            known = ", ".join(map(_name_text, self.jobs[:_NAMED_JOBS]))
            return "no_such_job", "; ".join(filter(None, (f"no job {name} is known", down, f"known: {known}"))), name
        looked = "; ".join(note.text for note in self.fleet_notes if note.kind == "discovery")
        return *explain_no_ranks(self.nodes, self.ignored, looked), name


_NAMED_JOBS = 8
_MIN_PREFIX_CHARACTERS = 6  # of a launcher's number that are taken for it: as git takes a commit's
_MAX_UNIX_SECONDS = 1e11
"""The largest number of Unix seconds that a page can show as a date."""


def _names_of(each: UnseenOn) -> tuple[str, ...]:
    process = each.process
    return str(JobKey(process.owner, process.job_id)), process.job_id, process.script


def _begins(job_id: str, text: str) -> bool:
    return len(text.removeprefix("job-")) >= _MIN_PREFIX_CHARACTERS and job_id.startswith(text)


def _name_text(job: JobSnapshot) -> str:
    return f"{job.key} ({job.script})" if job.script and is_numbered(job.key.job_id) else str(job.key)


def build_snapshot(
    windows: JobWindows,
    cluster: ClusterSnapshot,
    locate: Locate,
    launched: Sequence[LaunchedJob] = (),
    calm: Calm | None = None,
) -> ClusterSnapshot:
    """`cluster` with the jobs in `windows`, analysed, then those without hooks in `launched`. Those that are still
    `calm` are as they were in the round before. Pure but for the log. It may take seconds, so it does not belong on the
    event loop."""
    answering = {row.url for row in cluster.nodes if row.state == "up"}
    silent = {row.url: (place, row) for place, row in enumerate(cluster.nodes) if row.state != "up"}
    found = findings_by_node(cluster.findings, cluster.gpus)
    ordered = sorted(windows.jobs.items(), key=lambda item: item[1].recency, reverse=True)
    jobs = []
    for key, job in ordered:
        told = not job.running or job.ended_at >= (cluster.round_began_at or 0.0)
        before = calm.still(key, job, answering) if calm else None
        if before is not None:
            jobs.append(dataclasses.replace(before, progressed_at=job.recency[2], told=told))
            continue
        timings = job.timings(key.job_id, answering, found)
        located = partial(_with_stacks, locate, job)
        location = _locate(timings, located) if job.sources & answering else _no_agent_answers(timings, job)
        location = structs.replace(_with_notes(location, job, silent), owner=key.owner)
        agents = frozenset(job.sources)
        said, attempt = _said(job.said), job.run.attempt
        snapshot = JobSnapshot(
            key, job.running, timings, location, job.recency[2], *said, agents, told=told, attempt=attempt
        )
        jobs.append(snapshot)
        if location.verdict is not Verdict.FAIL:  # a doubt is of noise, too
            job.noise.take(timings)
        if calm:
            calm.judged(snapshot, job.run)
    urls = {row.node: row.url for row in cluster.nodes if row.node}
    jobs += _without_hooks(launched, found, urls, {job.key for job in jobs})
    jobs = _with_unseen(jobs, unseen_jobs(cluster.unseen))
    return dataclasses.replace(cluster, jobs=tuple(jobs), not_held=windows.not_held(answering))


def _with_stacks(locate: Locate, job: Job, timings: JobTimings) -> Location:
    """The verdict, with where in the code its culprits stand."""
    location = located(locate, timings, job.stacks.values())
    return with_stacks(location, job.stacks.values(), kernel=job.held_stacks.kernel())


def _with_unseen(jobs: Sequence[JobSnapshot], unseen: Mapping[JobKey, UnseenJob]) -> list[JobSnapshot]:
    """`jobs`, each with a note on those of its processes that train unseen; and the jobs of which no rank is seen.
    Those that run come before those that ended."""
    known = [_noted(job, unseen[job.key].note()) if job.key in unseen else job for job in jobs]
    keys = {job.key for job in jobs}
    others = [_unseen_snapshot(job) for key, job in unseen.items() if key not in keys]
    return sorted([*known, *others], key=lambda job: not job.running)


def _noted(job: JobSnapshot, note: Note) -> JobSnapshot:
    return dataclasses.replace(job, location=structs.replace(job.location, notes=(*job.location.notes, note)))


def _unseen_snapshot(job: UnseenJob) -> JobSnapshot:
    note = job.note()
    location = unknown_location(note.kind, note.text, job.key.job_id, job.world_size)
    timings = live_timings(job.key.job_id, job.world_size, {}, {}, {}, {})
    location = structs.replace(location, notes=(note,), owner=job.key.owner)
    return JobSnapshot(job.key, job.running, timings, location, script=job.script, agents=job.agents)


def _said(facts: Mapping[str, Any]) -> tuple[str, float | None]:
    """Script and start, from what a rank says: it may say anything."""
    script, started = facts.get(SCRIPT), facts.get(STARTED)
    known = isinstance(started, int | float) and not isinstance(started, bool) and 0 < started < _MAX_UNIX_SECONDS
    return script if isinstance(script, str) else "", float(started) if known and started else None


def _without_hooks(
    launched: Sequence[LaunchedJob],
    findings: Mapping[str, NodeFindings],
    urls: Mapping[str, str],
    taken: Collection[JobKey],
) -> list[JobSnapshot]:
    """The jobs that no rank file tells of. Of a job that has some, its rank files decide. `urls`: of agents, by
    node."""
    found: dict[JobKey, JobSnapshot] = {}
    for job in sorted(launched, key=lambda it: it.report.age_seconds):
        key = JobKey(job.report.owner, job.report.job_id)
        if key not in taken and key not in found:
            timings = no_timings(job, findings)
            location = _locate(timings, lambda _, job=job: locate_launches(job, findings))  # type: ignore[misc]
            agents = frozenset(urls[node] for node in job.nodes.values() if node in urls)
            location = structs.replace(location, owner=key.owner)
            found[key] = JobSnapshot(key, True, timings, location, agents=agents)
    return list(found.values())


def unknown_location(
    kind: str, text: str, job_id: str | None = None, world_size: int = 0, ranks_seen: int = 0
) -> Location:
    """Verdict `unknown`, with the reason as its only note."""
    note = Note(kind=kind, text=text)
    return Location(Verdict.UNKNOWN, job_id, world_size, ranks_seen, Window(), None, (), (note,))


def explain_no_ranks(nodes: Sequence[NodeRow], ignored: str = "", looked: str = "") -> tuple[str, str]:
    """The kind and text of the note that says why no rank is known. `looked`: what came of looking for agents."""
    states = Counter(row.state for row in nodes)
    if not nodes:
        return (
            "no_targets",
            looked or "no agent is known; name one with --target HOST:PORT, or say where they are listed",
        )
    if states["waiting"] == len(nodes):
        return "waiting", "the agents have not been asked yet"
    if not states["up"]:
        ill = ", ".join(f"{count} of {len(nodes)} {state}" for state, count in states.most_common())
        return "no_agent", f"no agent answers ({ill})"
    up, total = states["up"], len(nodes)
    agents = f"{up} of {total} agents" if up < total else f"{total} agent{'' if total == 1 else 's'}"
    answer = f"{agents} answer{'s' if up == 1 else ''}"
    if ignored:
        return "ranks_ignored", f"{answer}, but the rank files there were rejected: {ignored}"
    missing = "no training process with laggard's hooks has made a step there"
    return "no_ranks", f"{answer}, but {missing}: start it under laggard run, or wait for its first step"


def _locate(timings: JobTimings, locate: Locate) -> Location:
    try:
        return locate(timings)
    except Exception as error:  # a job that the analysis fails on leaves the others their verdict
        log.exception("the analysis of job %r failed", timings.job_id)
        text = f"the analysis failed, a defect in laggard: {type(error).__name__}: {error}"
        return unknown_location("defect", text, timings.job_id, timings.world_size, len(timings.ranks))


def _no_agent_answers(timings: JobTimings, job: Job) -> Location:
    text = f"no agent of this job answers ({len(job.sources)} of {len(job.sources)} silent)"
    return unknown_location("no_agent", text, timings.job_id, timings.world_size, len(timings.ranks))


def _with_notes(location: Location, job: Job, silent: Mapping[str, tuple[int, NodeRow]]) -> Location:
    """`location` with what the analysis cannot know: which of its agents are `silent`, and that the job has ended.
    `silent`: by URL, with the place of each among all, in the order of which they are named."""
    notes = list(location.notes)
    of_job = [row for _, row in sorted(silent[url] for url in job.sources if url in silent)]
    if of_job and location.verdict is not Verdict.UNKNOWN:
        names = listed([f"{row.node or row.url} ({row.state})" for row in of_job], 4)
        notes.append(Note(kind="agents_silent", text=f"no longer reporting: {names}"))
    if contested := job.contested:
        notes.append(_contested_note(contested))
    if not job.running:
        notes.append(Note(kind="ended", text="the job has ended; these were its last steps"))
    return structs.replace(location, notes=tuple(notes))


def _contested_note(contested: Mapping[int, RankWindow]) -> Note:
    ranks = tuple(sorted(contested))
    machines = sorted({name for rank in contested.values() for name in (rank.reporter[0], rank.rival)}, key=natural)
    more = [f"{len(machines) - 4} more"] if len(machines) > 4 else []
    names = joined([*(printable_line(name, 64) for name in machines[:4]), *more])
    text = f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} reported by more than one machine ({names}):"
    return Note("contested", f"{text} what is told there is not believed", ranks=ranks[:MAX_NAMED_RANKS])
