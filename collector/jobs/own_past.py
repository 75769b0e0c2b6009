"""The first hour of each live job, and whether it takes longer now: a job that is slow as a whole has no
peers to be compared with, but it has a past. Digests are made of a few jobs a round, so that none waits for them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from laggard.collector.jobs.job import Job
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.kit.words import joined, phase_text, printable_line
from laggard.locate.against.compare import compare
from laggard.locate.against.digest import digest_of, layout_text
from laggard.locate.slow.steps import MIN_STEPS
from laggard.model import JobKey, Note, Verdict
from laggard.rankfile.fact_names import GROUPS, parse_runs
from laggard.wire.digest import MAX_TEXT, Digest, merged_environment

FIRST_SECONDS: Final = 3600.0
"""The time after its first digest in which a job's own past is taken down."""

FIRST_DIGESTS: Final = 3
"""The number of digests that stand for that time: the one in the middle by its step stands for it."""

DIGEST_SECONDS: Final = 60.0
"""The time between two digests of a job."""

DIGESTS_A_ROUND: Final = 4
"""The most digests that one round makes: a large job's takes tens of milliseconds."""

NOTE_KIND: Final = "own_past"


@dataclasses.dataclass
class _Past:
    """`run`: when the run began; another one has a past of its own. `first`: digests of the first hour, with when they
    were made (monotonic seconds). `note`: by the last digest; `seen`: in how many digests in a row."""

    run: float
    first: list[tuple[float, Digest]] = dataclasses.field(default_factory=list)
    made_at: float = float("-inf")
    last: Digest | None = None
    note: Note | None = None
    seen: int = 0


class Made(NamedTuple):
    """A digest that was made now, to be kept; `is_first`: as the job's first hour."""

    key: JobKey
    digest: Digest
    is_first: bool


class OwnPasts:
    """The pasts of all jobs that run. One round follows the other; described() is called on the event loop."""

    def __init__(self) -> None:
        self._pasts: dict[JobKey, _Past] = {}

    def due(self, jobs: Sequence[JobSnapshot], now: float) -> list[JobSnapshot]:
        """The jobs of which a digest is to be made now, the longest without one first."""
        running = {job.key: job for job in jobs if job.running}
        self._pasts = {key: past for key, past in self._pasts.items() if key in running}
        for key, job in running.items():
            past = self._pasts.get(key)
            if past is None or past.run != (job.started_at or 0.0):
                self._pasts[key] = _Past(job.started_at or 0.0)
        waiting = sorted(running, key=lambda key: self._pasts[key].made_at)
        return [running[key] for key in waiting if now - self._pasts[key].made_at >= DIGEST_SECONDS][:DIGESTS_A_ROUND]

    def make(self, due: Sequence[tuple[JobSnapshot, Mapping[str, Any]]], now: float, wall: float) -> list[Made]:
        """Makes the digests of the jobs that are due. `now`: monotonic seconds, `wall`: Unix seconds."""
        made = []
        for job, about in due:
            past = self._pasts[job.key]
            past.made_at = now
            digest = digest_of(job.timings, **about, made_at=round(wall, 3))
            if digest is None or digest.steps < MIN_STEPS:
                continue
            past.last = digest
            is_first = self._take(past, digest, now)
            made.append(Made(job.key, digest, is_first))
        return made

    def _take(self, past: _Past, digest: Digest, now: float) -> bool:
        """Takes a digest into the first hour, or compares it with that. Returns whether it became the first hour's."""
        began = past.first[0][0] if past.first else now
        if now - began < FIRST_SECONDS:
            if len(past.first) < FIRST_DIGESTS and now - began >= len(past.first) * FIRST_SECONDS / FIRST_DIGESTS:
                past.first.append((now, digest))
                return _middle(past) is digest
            return False
        first = _middle(past)
        note = _note(first, digest) if first else None
        past.seen = past.seen + 1 if note else 0
        past.note = note if past.seen > 1 else None
        return False

    def first(self, key: JobKey) -> Digest | None:
        past = self._pasts.get(key)
        return _middle(past) if past else None

    def noted(self, jobs: Sequence[JobSnapshot]) -> tuple[JobSnapshot, ...]:
        """`jobs`, with what each takes longer than in its first hour. A verdict stays as it is: nobody is accused
        without the evidence of peers."""
        return tuple(self._with_note(job) for job in jobs)

    def _with_note(self, job: JobSnapshot) -> JobSnapshot:
        past = self._pasts.get(job.key) if job.running else None
        if past is not None and past.last is not None:
            job = dataclasses.replace(job, environment=past.last.environment)
        first = _middle(past) if past else None
        if past is None or past.last is None or first is None or first.step.seconds <= 0:
            return job
        ratio = round(past.last.step.seconds / first.step.seconds, 4)
        notes = (*job.location.notes, *([past.note] if past.note else []))
        return dataclasses.replace(job, first_hour_ratio=ratio, location=structs.replace(job.location, notes=notes))


def _middle(past: _Past) -> Digest | None:
    digests = sorted((digest for _, digest in past.first), key=lambda digest: digest.step.seconds)
    return digests[(len(digests) - 1) // 2] if digests else None


def _note(first: Digest, now: Digest) -> Note | None:
    """What takes longer in all ranks. What some ranks alone take longer is the verdict's to tell."""
    changes = [it for it in compare(first, now, "its first hour").changes if it.seconds > 0 and not it.ranks]
    texts = [
        f"{phase_text(it.phase or it.op or 'waiting in collectives')} takes {it.ratio * 100:.0f} % longer"
        for it in changes[:3]
        if it.ratio is not None
    ]
    return Note(NOTE_KIND, f"{joined(texts)} than in this job's first hour, in all ranks") if texts else None


def described(job: Job, snapshot: JobSnapshot) -> dict[str, Any]:
    """The fields of a digest that a job's rows tell, in place of its timings."""
    rows = [rank.newest for rank in job.ranks.values()]
    counts: Counter[str] = Counter()
    for row in rows:
        for total in row.collectives:
            counts[printable_line(f"{total.op} {total.group}", MAX_TEXT)] += total.count
    steps = sum(row.steps for row in rows)
    calls = {name: round(count / steps, 3) for name, count in counts.items()} if steps else {}
    return {
        "environment": merged_environment(row.facts for row in rows),
        "owner": snapshot.key.owner,
        "script": printable_line(snapshot.script or "", MAX_TEXT) or None,
        "started_at": snapshot.started_at,
        "healthy": snapshot.location.verdict is Verdict.OK,
        "layout": layout_text(_groups(rows), calls),
        "calls": calls,
    }


def _groups(rows: Sequence[Any]) -> Any:
    """Role and size of each group, by the facts of ranks, which may tell anything."""
    known: dict[str, tuple[str, int]] = {}
    for row in rows:
        told = row.facts.get(GROUPS)
        for name, members in told.items() if isinstance(told, Mapping) else ():
            runs = parse_runs(members, row.world_size)
            if runs and isinstance(name, str) and len(known) < 65_536:
                known[name] = (name.partition(":")[0], sum(run.length for run in runs))
    return iter(known.values())
