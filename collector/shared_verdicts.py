"""The verdicts that evaluators share through PostgreSQL: a beat writes and reads them. A hash of the job says who
judges it, and the newest verdict on it counts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from msgspec import Struct, structs

from laggard.collector.incidents.incident import bounded as bounded_culprit
from laggard.collector.incidents.reads import decoded
from laggard.collector.incidents.schema import DatabaseError, Words
from laggard.collector.incidents.store import Store, StoreSettings, put
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.prometheus.watch import snapshot_of
from laggard.kit.words import counted, seconds_text
from laggard.model import JobKey, Location, Note
from laggard.wire import encode

# The rows that evaluators share in PostgreSQL: who of them is alive, and the verdict on each job. Times are the
# database's.
#
# Both are facts about now, and no part of the history of incidents: who lost them has them again within a round. So the
# tables are unlogged (after a crash of the server they are empty).

MAX_EVALUATORS: Final = 256
"""The most evaluators of one group."""

MAX_DOCUMENT_BYTES: Final = 128 << 10
"""The most bytes of a verdict that is read: evaluators of this release write half as many."""

FORGET_SECONDS: Final = 3600
"""The time after which the row of a verdict goes that nobody renews: of a group that is no more."""

_CHUNK: Final = 64
"""The most documents in one answer."""

_SHARED: Final = sa.MetaData()

EVALUATORS: Final = sa.Table(
    "evaluators",
    _SHARED,
    sa.Column("fleet", Words, primary_key=True),
    sa.Column("name", Words, primary_key=True),
    sa.Column("until", sa.Double, nullable=False),
    prefixes=["UNLOGGED"],
)

VERDICTS: Final = sa.Table(
    "verdicts",
    _SHARED,
    sa.Column("fleet", Words, primary_key=True),
    sa.Column("owner", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("job_id", Words, primary_key=True),
    sa.Column("judged_at", sa.Double, nullable=False),
    sa.Column("judged_by", Words, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    prefixes=["UNLOGGED"],
)


class VerdictDocument(Struct, frozen=True):
    """The document of a row: the job's verdict, whether it runs, and when it last got on (Unix time, by its node's
    clock)."""

    location: Location
    running: bool
    progressed_at: float


# The share of each evaluator: a hash of the job, modulo the number of live evaluators, says who judges it. Pure.
#
# The hash is Prometheus' own `hashmod` (relabel_configs) of the labels `user` and `job_id`, joined by `;`: the last
# eight bytes of their MD5, as a number. So who shards scrapes in the same way gets the same shares. Source: Prometheus'
# documentation, configuration, relabel_config, and its model/relabel.

LEASE_SECONDS: Final = 10.0
"""The time after which an evaluator that has not said that it is alive is gone, by the database's clock: its jobs are
others' then. laggard's choice: four beats that fail."""

BEAT_SECONDS: Final = 2.0
"""The time from one beat, in which an evaluator says that it is alive and reads what others judged, to the next."""


class Members(NamedTuple):
    """The evaluators among whom the jobs are shared, by name, and the name of this one."""

    names: tuple[str, ...] = ()
    me: str = ""

    def judge_of(self, key: JobKey) -> str:
        """The evaluator that judges the job; empty where there is none."""
        return self.names[hashmod(key, len(self.names))] if self.names else ""

    def is_mine(self, key: JobKey) -> bool:
        return bool(self.me) and self.judge_of(key) == self.me

    def after(self, live: Iterable[str], me: str, back_seconds: float) -> Members:
        """The members once a beat found `live` ones. While the database has been there again for less than a lease,
        those of before count as well: they all come back at once, and jobs need not move to and fro. (Not this one's
        former name, where the server still has the connection that holds it.) Where nobody is live, since Prometheus
        answers none of them, nothing moves."""
        found = set(live)
        if not found or back_seconds < LEASE_SECONDS:
            found |= set(self.names) - ({self.me} if me != self.me else set())
        return Members(tuple(sorted(found)), me)


def hashmod(key: JobKey, modulus: int) -> int:
    """0 to `modulus` - 1."""
    digest = hashlib.md5(f"{key.owner};{key.job_id}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "big") % modulus


# The one answer of all evaluators: each job with the newest verdict that any of them has. Pure.
#
# A verdict is a fact about now for a few rounds. What nobody has judged in time is `unknown`, with the reason, and
# never `ok`.

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
        newest = self.newest(key)
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

    def newest(self, key: JobKey) -> Judged | None:
        """The newest verdict on the job that any evaluator has."""
        found = (it for it in (self.own.get(key), self.rows.get(key)) if it is not None)
        return max(found, key=lambda it: it.at, default=None)

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
        self._store: Store | None = None
        self._me = ""  # no other of its group has this name: that of its connection, by a lock
        self._was_open, self._back_at = False, float("-inf")
        self._read: dict[JobKey, tuple[float, Judged]] = {}  # with when it was judged, by the database's clock

    def beat(self, is_able: bool, judged: Sequence[Judged], gone: Sequence[JobKey]) -> Beat:
        """`is_able`: whether this evaluator can judge; else others are to take its jobs. `judged`: what is to be
        stored, but where a newer verdict is there; `gone`: the jobs that Prometheus no longer has. Raises
        DatabaseError."""
        if self._store is not None:
            with contextlib.suppress(DatabaseError):  # the server may have been started again since
                return self._beat(is_able, judged, gone)
        return self._beat(is_able, judged, gone)

    def leave(self) -> None:
        """Says that this evaluator is gone, so that nobody waits for its lease to end. Raises DatabaseError."""
        if self._store is not None:
            with self._store.transaction(alone=False) as connection:
                connection.execute(sa.delete(EVALUATORS).where(*self._own_row()))
            self.close()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = None

    def _beat(self, is_able: bool, judged: Sequence[Judged], gone: Sequence[JobKey]) -> Beat:
        try:
            store = self._opened()
            with store.transaction(alone=False) as connection:  # other collectors need not wait for it
                at = store.now()
                self._tell(connection, is_able, judged, at)
                self._forget(connection, gone, at)
                where = EVALUATORS.c.fleet == self._place.fleet, EVALUATORS.c.until > at
                names = sa.select(EVALUATORS.c.name).where(*where).order_by(EVALUATORS.c.name).limit(MAX_EVALUATORS)
                live, rows = tuple(connection.scalars(names)), self._verdicts(connection, at)
        except DatabaseError:
            self.close()
            raise
        return Beat(live, self._me, rows, time.monotonic() - self._back_at)

    def _opened(self) -> Store:
        if self._store is None:
            place = self._place
            self._store = Store(StoreSettings(place.url, 0, 0.0, writer=f"{place.fleet}/{place.name}"))
            with self._store.transaction() as connection:  # alone: two that make one table get in each other's way
                _SHARED.create_all(connection)
            self._me = self._store.writer.removeprefix(f"{place.fleet}/")
            self._back_at = time.monotonic() if self._was_open else float("-inf")
            self._was_open, self._read = True, {}
        return self._store

    def _own_row(self) -> tuple[sa.ColumnElement[bool], ...]:
        return EVALUATORS.c.fleet == self._place.fleet, EVALUATORS.c.name == self._me

    def _tell(self, connection: sa.Connection, is_able: bool, judged: Sequence[Judged], at: float) -> None:
        """Says that this evaluator is alive for a lease, or cannot judge, and stores verdicts."""
        fleet, me, now = self._place.fleet, self._me, time.monotonic()
        if is_able:
            put(connection, EVALUATORS, [{"fleet": fleet, "name": me, "until": at + LEASE_SECONDS}])
        else:
            connection.execute(sa.delete(EVALUATORS).where(*self._own_row()))
        rows = [
            {
                "fleet": fleet,
                "owner": it.job.key.owner,
                "job_id": it.job.key.job_id,
                "judged_at": at - max(0.0, now - it.at),
                "judged_by": me,
                "document": encode(VerdictDocument(it.job.location, it.job.running, it.job.progressed_at)),
            }
            for it in sorted(judged, key=lambda it: it.job.key)
        ]
        put(connection, VERDICTS, rows, later="judged_at")

    def _forget(self, connection: sa.Connection, gone: Sequence[JobKey], at: float) -> None:
        """Drops the verdicts on jobs that are gone, and what nobody renews, in whatever group. What another evaluator
        is about to write is left to the next beat."""
        it, old, keys = VERDICTS.c, at - FORGET_SECONDS, sa.tuple_(*VERDICTS.primary_key)
        own = sa.and_(it.fleet == self._place.fleet, sa.tuple_(it.owner, it.job_id).in_(gone))
        over = sa.select(*VERDICTS.primary_key).where(sa.or_(own, it.judged_at < old)).with_for_update(skip_locked=True)
        connection.execute(sa.delete(VERDICTS).where(keys.in_(over)))
        names = sa.select(*EVALUATORS.primary_key).where(EVALUATORS.c.until < old).with_for_update(skip_locked=True)
        connection.execute(sa.delete(EVALUATORS).where(sa.tuple_(*EVALUATORS.primary_key).in_(names)))

    def _verdicts(self, connection: sa.Connection, now: float) -> dict[JobKey, Judged]:
        """The newest verdicts of all rows; only those are read that have changed. One row's damage, or another
        release's, costs that row."""
        it, here = VERDICTS.c, time.monotonic()
        of_group = sa.select(it.owner, it.job_id, it.judged_by, it.judged_at).where(it.fleet == self._place.fleet)
        rows = connection.execute(of_group.order_by(it.judged_at.desc()).limit(self._max_jobs)).all()
        marks = {JobKey(owner, job_id): (by, at) for owner, job_id, by, at in rows}
        kept = {key: known for key, known in self._read.items() if key in marks and known[0] == marks[key][1]}
        new = [key for key in marks if key not in kept]
        documents = of_group.add_columns(it.document).where(sa.func.octet_length(it.document) <= MAX_DOCUMENT_BYTES)
        for start in range(0, len(new), _CHUNK):
            some = sa.tuple_(it.owner, it.job_id).in_(new[start : start + _CHUNK])
            for owner, job_id, by, at, document in connection.execute(documents.where(some)):
                for found in decoded([document], VerdictDocument):
                    job = snapshot_of(JobKey(owner, job_id), found.location, found.progressed_at)
                    judged = Judged(dataclasses.replace(job, running=found.running), here - max(0.0, now - at), by)
                    kept[judged.job.key] = at, judged
        self._read = kept
        return {key: judged for key, (_, judged) in kept.items()}
