"""The advice for each job that runs, taken down with each of its digests, and judged when a later run of its script
tells whether it was done. Not thread-safe: one round follows the other.

What is taken down is what the job's owner may see: whoever reads it later learns nothing more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.kept_advice import AdviceQuery, RunAdvice
from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.own_past import Made
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.tenants.viewer import Viewer
from laggard.collector.tenants.visible import visible
from laggard.collector.web.situation import situation_of
from laggard.model import Culprit, Severity
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.outcome.advised import advised_of
from laggard.recommend.outcome.judge import judged
from laggard.recommend.outcome.values import MAX_ADVICE, UNKNOWN, Advised, Outcome, SeenRun

log = logging.getLogger("laggard.collector")

MAX_FINDINGS: Final = 512
"""The most findings of a job's nodes that are taken down."""

_OVER: Final = Outcome(
    done=UNKNOWN, how="it was not advised any more before the run ended", why="nothing tells whether it was done"
)

Runs = Callable[[AdviceQuery], Sequence[RunAdvice]]


class _Open(NamedTuple):
    """Advice that is not given any more while its job goes on, and the run as it was when it was given last."""

    advised: Advised
    before: SeenRun


class AdviceBook:
    """`kept` finds what is kept of runs."""

    def __init__(self, kept: Runs) -> None:
        self._kept = kept
        self._runs: dict[JobKey, RunAdvice] = {}
        self._open: dict[JobKey, list[_Open]] = {}
        self._told: set[tuple[JobKey, float]] = set()

    def take(
        self, made: Sequence[Made], snapshot: ClusterSnapshot, incidents: Sequence[Incident], wall: float
    ) -> list[RunAdvice]:
        """Returns what is to be kept, after these digests were made. `wall`: Unix seconds."""
        running = {job.key for job in snapshot.jobs if job.running}
        self._runs = {key: run for key, run in self._runs.items() if key in running}
        self._open = {key: them for key, them in self._open.items() if key in running}
        self._told = {it for it in self._told if it[0] in running}
        found: list[RunAdvice] = []
        for each in made:
            try:
                found += self._take_one(each, snapshot, incidents, wall)
            except Exception:  # other jobs' advice does not suffer by it
                log.exception("a defect in laggard: what is advised of job %s was not taken down", each.key)
        return found

    def _take_one(
        self, made: Made, snapshot: ClusterSnapshot, incidents: Sequence[Incident], wall: float
    ) -> list[RunAdvice]:
        run = run_of(made, visible(snapshot, Viewer(made.key.owner, "")), incidents, wall)
        if run is None:
            return []
        run = self._with_past(run, wall)
        self._runs[run.key] = run
        found = [run] if run.advised else []
        before = self._before(run)
        if before is not None and any(it.outcome is None for it in before.advised):
            found.append(structs.replace(before, advised=_judged(before, run.seen, wall)))
        return found

    def _with_past(self, run: RunAdvice, wall: float) -> RunAdvice:
        """The run with the advice that it was given before. What is not advised any more was done, or was over by
        itself: what it gained shows when all of the run's steps are later ones."""
        old = self._runs.get(run.key) or next(iter(self._kept(AdviceQuery(run.owner, run.job_id, limit=1))), None)
        if old is None or old.started_at != run.started_at:
            self._open.pop(run.key, None)
            return run
        names = {it.name for it in run.advised}
        gone = [it for it in old.advised if it.name not in names]
        waiting = [it for it in self._open.get(run.key, ()) if it.advised.name not in names]
        waiting += [_Open(it, old.seen) for it in gone if it.outcome is None]
        ripe = [it for it in waiting if run.digest.first_step > it.before.digest.last_step]
        self._open[run.key] = [it for it in waiting if it not in ripe][:MAX_ADVICE]
        told = {it.name: structs.replace(it, outcome=it.outcome or _OVER) for it in gone}
        for each in ripe:
            told.update({it.name: it for it in judged([each.advised], each.before, run.seen, wall)})
        return structs.replace(run, advised=(*run.advised, *told.values())[:MAX_ADVICE])

    def _before(self, run: RunAdvice) -> RunAdvice | None:
        """The run before, where it is this run that tells of it: the first digest of a run decides, once."""
        if not run.started_at or not run.script or (run.key, run.started_at) in self._told:
            return None
        self._told.add((run.key, run.started_at))
        query = AdviceQuery(run.owner, script=run.script, world_size=run.world_size, until=run.started_at, limit=1)
        return next(iter(self._kept(query)), None)


def _judged(before: RunAdvice, now: SeenRun, wall: float) -> tuple[Advised, ...]:
    waiting = [it for it in before.advised if it.outcome is None]
    told = {it.name: it for it in judged(waiting, before.seen, now, wall)}
    return tuple(told.get(it.name, it) for it in before.advised)


def run_of(made: Made, snapshot: ClusterSnapshot, incidents: Sequence[Incident], wall: float) -> RunAdvice | None:
    """The advice for a run now; None where it has ended meanwhile. `snapshot`: as its owner sees it."""
    key, digest = made.key, made.digest
    job = next((job for job in snapshot.jobs if job.key == key), None)
    if job is None:
        return None
    nodes = frozenset(digest.nodes)
    findings = _findings(snapshot, nodes)
    answered = {row.node for row in snapshot.nodes if row.state == "up" and row.verdict not in (None, UNKNOWN)}
    items = recommend(situation_of(snapshot, str(key))).items
    ids = {_gist(it.culprit): it.id for it in incidents if it.key == key}
    return RunAdvice(
        owner=key.owner,
        job_id=key.job_id,
        script=digest.script or "",
        world_size=digest.world_size,
        started_at=digest.started_at or 0.0,
        made_at=wall,
        digest=digest,
        findings=findings,
        judged_nodes=tuple(sorted(node for node in answered if node in nodes)),
        advised=advised_of(items, _culprits(job), findings, wall, lambda culprit: ids.get(_gist(culprit))),
    )


def _gist(culprit: Culprit) -> tuple[object, ...]:
    """What tells a culprit from another one for a reader: its kind and place, not its phase or its findings."""
    return culprit.kind, culprit.ranks, culprit.machines, culprit.device, culprit.stopped


def _culprits(job: JobSnapshot) -> Sequence[Culprit]:
    return job.location.culprits[:MAX_ADVICE]


def _findings(snapshot: ClusterSnapshot, nodes: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Code and node, each once, the worst first; without what is only told."""
    found = (
        (it.finding.code, it.node)
        for it in snapshot.findings
        if it.node in nodes and it.finding.severity is not Severity.INFO
    )
    return tuple(dict.fromkeys(found))[:MAX_FINDINGS]
