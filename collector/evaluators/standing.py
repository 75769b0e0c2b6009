"""The one answer of all evaluators: each job with the newest verdict that any of them has. Pure.

A verdict is a fact about now for a few rounds. What nobody has judged in time is `unknown`, with the reason, and never
`ok`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector.evaluators.shares import LEASE_SECONDS, Members
from laggard.collector.incidents.incident import bounded as bounded_culprit
from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.prometheus.watch import snapshot_of
from laggard.model import Location, Note
from laggard.text.words import counted, seconds_text
from laggard.wire import encode

STALE_ROUNDS: Final = 3
"""The number of rounds after which a verdict says nothing about now. laggard's choice: one round may be late, and one
may be lost with the evaluator. A round counts as a lease at least: so long it takes until another one judges."""

MAX_VERDICT_BYTES: Final = 64 << 10
"""The most bytes of a verdict that evaluators exchange: of a longer one culprits are left out."""

MAX_VERDICT_CULPRITS: Final = 32
MAX_NOTES: Final = 32
MAX_NOTE_CHARACTERS: Final = 400

NOT_JUDGED: Final = "not_judged"
"""The kind of the note on a job that no evaluator has judged in time."""


class Judged(NamedTuple):
    """A verdict, when its evaluator began to look (this machine's monotonic seconds), and the name of that."""

    job: JobSnapshot
    at: float
    by: str


@dataclasses.dataclass(frozen=True)
class Standing:
    """The knowledge of one evaluator: `known`, when each job that Prometheus has got on last (Unix time); the verdicts
    of its `own`, and the `rows` of all evaluators. `away`: why the others' verdicts cannot be read; empty where they
    can."""

    members: Members
    known: Mapping[JobKey, float] = dataclasses.field(default_factory=dict)
    own: Mapping[JobKey, Judged] = dataclasses.field(default_factory=dict)
    rows: Mapping[JobKey, Judged] = dataclasses.field(default_factory=dict)
    away: str = ""

    def jobs(self, now: float, round_seconds: float, limit: int) -> tuple[JobSnapshot, ...]:
        """The jobs with their verdicts, those first that run, of these the one that got on last, at most `limit`.
        `now`: monotonic seconds."""
        found = [self._job(key, now, round_seconds) for key in self.job_keys()]
        return tuple(sorted(found, key=lambda it: (not it.running, -it.progressed_at, it.key))[:limit])

    def job_keys(self) -> set[JobKey]:
        """The jobs that this evaluator knows, whoever judges them."""
        mine = {key for key in self.own if self.members.is_mine(key)}
        return {*self.known, *mine, *self.rows}

    def _job(self, key: JobKey, now: float, round_seconds: float) -> JobSnapshot:
        is_mine = self.members.is_mine(key)
        newest = max(self._judged(key), key=lambda it: it.at, default=None)
        round_seconds = max(round_seconds, LEASE_SECONDS)
        why = self._why_unknown(newest, is_mine, now, STALE_ROUNDS * round_seconds)
        if newest is not None and not why:
            told = now - newest.at <= 2 * round_seconds
            return dataclasses.replace(newest.job, elsewhere=not is_mine, told=told and newest.job.told)
        before = newest.job.location if newest else None
        seen = (before.world_size, before.ranks_seen) if before else (0, 0)
        location = unknown_location(NOT_JUDGED, why, key.job_id, *seen)
        job = snapshot_of(key, structs.replace(location, owner=key.owner), self.known.get(key, 0.0))
        if newest is not None:
            job = dataclasses.replace(job, running=newest.job.running, progressed_at=newest.job.progressed_at)
        return dataclasses.replace(job, elsewhere=not is_mine, told=False)

    def _judged(self, key: JobKey) -> Iterator[Judged]:
        for found in (self.own.get(key), self.rows.get(key)):
            if found is not None:
                yield found

    def _why_unknown(self, newest: Judged | None, is_mine: bool, now: float, stale_seconds: float) -> str:
        """The reason why there is no verdict about now; empty where there is one."""
        if self.away and not is_mine:
            return f"it is for another evaluator to judge, and what others judged cannot be read: {self.away}"
        if newest is None:
            return "no evaluator has judged it yet"
        age = now - newest.at
        if age <= stale_seconds:
            return ""
        said = newest.job.location.verdict.value
        return f"it was judged last {seconds_text(age)} ago, by {newest.by} ({said}), which says nothing about now"


def bounded(location: Location) -> Location:
    """The verdict in at most MAX_VERDICT_BYTES, whatever labels its series have."""
    found = _with_bounded_texts(location)
    number = len(found.culprits)
    while len(encode(found)) > MAX_VERDICT_BYTES and number > 1:
        number //= 2
        text = f"the first of {counted(len(location.culprits), 'culprit')}: more are too long to be exchanged"
        found = structs.replace(
            found, culprits=found.culprits[:number], notes=(*found.notes, Note("culprits_left_out", text))
        )
    return found


def _with_bounded_texts(location: Location) -> Location:
    """The verdict in some tens of kilobytes at most, whatever the job's ranks reported."""
    notes = (
        structs.replace(note, text=note.text[:MAX_NOTE_CHARACTERS], ranks=note.ranks[:64])
        for note in location.notes[:MAX_NOTES]
    )
    culprits = tuple(bounded_culprit(culprit) for culprit in location.culprits[:MAX_VERDICT_CULPRITS])
    return structs.replace(location, culprits=culprits, notes=tuple(notes))


def not_looked_at(keys: Iterable[JobKey], known: Mapping[JobKey, float], most: int) -> list[JobSnapshot]:
    """Those of an evaluator's jobs for which there is no time."""
    text = f"its evaluator judges {most} jobs at once, those that got on last: run more evaluators"
    return [
        snapshot_of(key, structs.replace(unknown_location(NOT_JUDGED, text, key.job_id), owner=key.owner), known[key])
        for key in keys
    ]
