"""One beat of an evaluator: it says that it is alive, stores what it judged, and reads what all have judged."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laggard.collector.evaluators.rows import Mark, Rows, VerdictDocument, VerdictRow
from laggard.collector.evaluators.shares import LEASE_SECONDS
from laggard.collector.evaluators.standing import Judged
from laggard.collector.incidents.engine import DatabaseError
from laggard.collector.incidents.moved_jobs import Moved, taken_over
from laggard.collector.incidents.postgres import PostgresStore, told
from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.prometheus.watch import snapshot_of


class Place(NamedTuple):
    """The database (a URL), the group of evaluators in it, and the name that this one has there if no other does."""

    url: str
    fleet: str
    name: str


class Beat(NamedTuple):
    """The evaluators that are alive, the name of this one, the verdicts of all, and for how many seconds the database
    has been there again; infinite where it was not away."""

    live: tuple[str, ...]
    me: str
    rows: dict[JobKey, Judged]
    back_seconds: float


class Exchange:
    """A connection to the database, opened again after it failed. To be used by one thread at a time."""

    def __init__(self, place: Place, max_jobs: int) -> None:
        self._place, self._max_jobs = place, max_jobs
        self._store: PostgresStore | None = None
        self._rows: Rows | None = None
        self._was_open, self._back_at = False, float("-inf")
        self._read: dict[JobKey, tuple[Mark, Judged]] = {}

    def beat(self, is_able: bool, judged: Sequence[Judged], gone: Sequence[JobKey]) -> Beat:
        """`is_able`: whether this evaluator can judge; else others are to take its jobs. `judged`: what is to be
        stored; `gone`: the jobs that Prometheus no longer has. Raises DatabaseError."""
        if self._store is not None:
            with contextlib.suppress(DatabaseError):  # the server may have been started again since
                return self._told_beat(is_able, judged, gone)
        return self._told_beat(is_able, judged, gone)

    def _told_beat(self, is_able: bool, judged: Sequence[Judged], gone: Sequence[JobKey]) -> Beat:
        try:
            with told(self._place.url):
                return self._beat(is_able, judged, gone)
        except DatabaseError:
            self.close()
            raise

    def _beat(self, is_able: bool, judged: Sequence[Judged], gone: Sequence[JobKey]) -> Beat:
        store, rows = self._opened()
        me = self._name(store)
        if is_able:
            rows.renew(me, LEASE_SECONDS)
        else:
            rows.leave(me)
        now = time.monotonic()
        rows.put(me, [_row(it, now) for it in sorted(judged, key=lambda it: it.job.key)])
        rows.drop(gone)
        rows.forget_old()
        return Beat(rows.live(), me, self._verdicts(rows), time.monotonic() - self._back_at)

    def _name(self, store: PostgresStore) -> str:
        """The name of this evaluator, which no other of its group has: that of its connection, by a lock."""
        return store.writer.removeprefix(f"{self._place.fleet}/")

    def _opened(self) -> tuple[PostgresStore, Rows]:
        if self._store is None or self._rows is None:
            place = self._place
            self._store = PostgresStore.open(place.url, 0, f"{place.fleet}/{place.name}")
            self._rows = Rows(self._store, place.fleet)
            self._back_at = time.monotonic() if self._was_open else float("-inf")
            self._was_open, self._read = True, {}
        return self._store, self._rows

    def _verdicts(self, rows: Rows) -> dict[JobKey, Judged]:
        """The verdicts of all rows; only those are read that have changed."""
        marks = rows.marks(self._max_jobs)
        at = time.monotonic()
        kept = {key: it for key, it in self._read.items() if key in marks and it[0].at == marks[key].at}
        new = [key for key in marks if key not in kept]
        for key, document in rows.verdicts(new).items():
            mark = marks[key]
            kept[key] = (mark, Judged(_job(key, document), at - max(0.0, mark.age_seconds), mark.by))
        self._read = kept
        return {key: judged for key, (_, judged) in kept.items()}

    def taken_over(self, keys: Iterable[JobKey], since: float) -> Moved:
        """The incidents of jobs that this evaluator takes over, open at `since` (Unix seconds) or later. Raises
        DatabaseError."""
        try:
            with told(self._place.url):
                return taken_over(self._opened()[0], keys, since)
        except DatabaseError:
            self.close()
            raise

    def leave(self) -> None:
        """Says that this evaluator is gone, so that nobody waits for its lease to end. Raises DatabaseError."""
        if self._store is not None and self._rows is not None:
            with told(self._place.url):
                self._rows.leave(self._name(self._store))
            self.close()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = self._rows = None


def _row(it: Judged, now: float) -> VerdictRow:
    document = VerdictDocument(it.job.location, it.job.running, it.job.progressed_at)
    return VerdictRow(it.job.key, max(0.0, now - it.at), document)


def _job(key: JobKey, document: VerdictDocument) -> JobSnapshot:
    job = snapshot_of(key, document.location, document.progressed_at)
    return dataclasses.replace(job, running=document.running)
