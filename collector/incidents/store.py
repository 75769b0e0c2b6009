"""The database that a collector writes: a file of its own, or a PostgreSQL that several write. What two of them saw has
one row, rows of one that is gone are closed, and all of it is bounded.

A collector goes on with ids of its own; which row each is, its store remembers. All that is written at once is one
transaction, which keeps other collectors out: nothing comes between what is looked for and what is stored. A row is
written again while its collector watches what it tells of; one that nobody has written for long nobody watches.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs
from sqlalchemy import ColumnElement, Connection, Table, delete, func, or_, select, text, update
from sqlalchemy.dialects import postgresql as postgresql_words
from sqlalchemy.dialects import sqlite as sqlite_words

from laggard.collector.incidents import bounds, postgres, reads, schema, sqlite
from laggard.collector.incidents.incident import (
    WEEK_SECONDS,
    Fault,
    Incident,
    IncidentQuery,
    KeptDigest,
    NodeName,
    incident_of,
)
from laggard.collector.incidents.rows import OF_FAULTS, OF_INCIDENTS, Ids, Kind, OwnIds, Row, T, chunks, count, resolved
from laggard.kit.address import is_database_url
from laggard.wire import encode
from laggard.wire.exclusion import Confirmation

MEASURE_SECONDS: Final = 30.0
"""The longest time for which the size of the rows is not measured anew, unless much was put there."""

LEFT_SECONDS: Final = 900.0
"""The time after which an incident that nobody has written is one that nobody watches. It is written once a minute
while somebody does, and closed when its job has been silent for incident_quiet_seconds."""

LEFT_FAULT_SECONDS: Final = 3 * 3600.0
"""The same of a fault, which is written once an hour."""

_MAX_NEWS: Final = 4096
"""The most incidents of others that are learnt at once, the last ones."""

_NOW: Final = {
    "sqlite": text("SELECT (julianday('now') - 2440587.5) * 86400"),
    "postgresql": text("SELECT CAST(extract(epoch FROM now()) AS DOUBLE PRECISION)"),
}
"""The database's clock, which is that of all collectors."""


class Batch(NamedTuple):
    """The rows that are written at once."""

    incidents: Collection[Incident] = ()
    faults: Collection[Fault] = ()
    names: Collection[NodeName] = ()
    confirmations: Collection[Confirmation] = ()
    digests: Collection[KeptDigest] = ()


class Nodes(NamedTuple):
    """What a collector knows of nodes when it starts: the open faults, the names, and what has ended of late."""

    faults: tuple[Fault, ...]
    names: tuple[NodeName, ...]
    ended: tuple[Fault, ...]


class News(NamedTuple):
    """News of other collectors: incidents that they wrote, and all measurements of suspects."""

    incidents: tuple[Incident, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()


def put(connection: Connection, table: Table, rows: Sequence[Row], later: str = "") -> None:
    """Stores rows in place of those with the same key; with `later`, a column, not where that has more there."""
    if not rows:
        return
    words = sqlite_words if connection.dialect.name == "sqlite" else postgresql_words
    new = words.insert(table)
    others = {it.name: new.excluded[it.name] for it in table.columns if not it.primary_key and it.name in rows[0]}
    where = new.excluded[later] >= table.c[later] if later else None
    connection.execute(
        new.on_conflict_do_update(index_elements=list(table.primary_key), set_=others, where=where), rows
    )


class StoreSettings(NamedTuple):
    """`place`: a file's path, or a URL of PostgreSQL, where `writer` is this collector's name; empty: what is new there
    is nobody's yet. `quiet_seconds`: docs/incidents.md."""

    place: str
    max_bytes: int
    keep_seconds: float
    quiet_seconds: float = 0.0
    writer: str = "collector"

    @property
    def is_shared(self) -> bool:
        return is_database_url(self.place)


class Store:
    """To be used by one thread at a time. All its methods but close() raise DatabaseError."""

    def __init__(self, settings: StoreSettings, ids: OwnIds | None = None, version: int = schema.VERSION) -> None:
        """Makes the tables where there are none, and brings those of another release to this one's, or to `version`."""
        self.settings, self.ids = settings, ids or OwnIds()
        self.writer, self.lock, self.bytes = "", -1, 0
        self._measured_at, self._put_bytes = float("-inf"), 0
        self._opened_at, self._learnt_until = time.monotonic(), -1.0
        with reads.told(settings.place):
            if settings.is_shared:
                engine = postgres.engine_of(settings.place)
            else:
                self.lock = sqlite.lock(settings.place)
                engine = sqlite.engine_to_write(settings.place, settings.max_bytes)
            try:
                self.connection = engine.connect()
                self._prepare(version)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def _prepare(self, version: int) -> None:
        connection, settings = self.connection, self.settings
        if not settings.is_shared:
            with self.transaction(new=True):
                self._prepare_tables(version)
            self._driver.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        postgres.refuse_lent(settings.place, connection)
        with self.transaction(new=True):
            postgres.make_schema(settings.place, connection)
            self._prepare_tables(version)
            if settings.writer:
                self.writer = postgres.own_name(settings.place, connection, settings.writer)

    def _prepare_tables(self, version: int) -> None:
        try:
            schema.prepare(self.connection, version)
        except schema.DatabaseError as error:
            raise schema.DatabaseError(f"{reads.shown(self.settings.place)} {error}") from None
        self.bytes = bounds.size(self.connection)

    @property
    def _driver(self) -> Any:
        return self.connection.connection.driver_connection

    @contextlib.contextmanager
    def transaction(self, new: bool = False, alone: bool = True) -> Iterator[Connection]:
        """All of it or nothing, and other collectors wait meanwhile, if it is to be `alone`. `new`: the tables may be
        of another version."""
        with reads.told(self.settings.place), self.connection.begin():
            if alone and self.settings.is_shared:
                self.connection.execute(select(func.pg_advisory_xact_lock(postgres.LOCK)))
            if not new and (version := schema.version_of(self.connection)) != schema.VERSION:
                raise schema.DatabaseError(f"{reads.shown(self.settings.place)} {schema.wrong_version(version)}")
            yield self.connection

    def write(self, batch: Batch, now: float) -> int:
        """Stores it, in place of what was stored of the same, and drops what is too old or too much. Returns the size
        of the database. What fails stores nothing."""
        try:
            self._write(batch, now - self.settings.keep_seconds)
        except schema.FullError:
            with self.transaction() as connection:
                bounds.make_room(connection, self.settings.max_bytes, bounds.PRUNED_SHARE / 2)
            self._write(batch, now - self.settings.keep_seconds)
        return self.bytes

    def _write(self, batch: Batch, since: float) -> None:
        with self.ids.incidents.kept(), self.ids.faults.kept(), self.transaction() as connection:
            written_at = self.now()
            bounds.drop_older(connection, since)
            self._store(OF_INCIDENTS, batch.incidents, self.ids.incidents, written_at)
            self._store(OF_FAULTS, batch.faults, self.ids.faults, written_at)
            put(connection, schema.NAMES, [_name_row(it) for it in batch.names], later="seen_at")
            put(connection, schema.CONFIRMATIONS, [_confirmation_row(it) for it in batch.confirmations])
            self._store_digests(batch.digests)
            bounds.drop_beyond(connection, self.settings.max_bytes)
            self._measure()
            if not self.settings.is_shared:  # the server does it by itself
                self._driver.execute("PRAGMA incremental_vacuum").fetchall()
            self.bytes = bounds.size(self.connection)

    def _measure(self) -> None:
        """Drops incidents where it is nearly full; a server has to read all rows for that."""
        is_fresh = time.monotonic() - self._measured_at < MEASURE_SECONDS
        if is_fresh and self._put_bytes < self.settings.max_bytes // 16:
            return
        self._measured_at, self._put_bytes = time.monotonic(), 0
        if bounds.used(self.connection, self.settings.max_bytes) > bounds.FULL_SHARE:
            bounds.make_room(self.connection, self.settings.max_bytes, bounds.PRUNED_SHARE)

    def now(self) -> float:
        """The database's clock, in Unix seconds."""
        return float(self.connection.scalar(_NOW[self.connection.dialect.name]) or 0.0)

    def _store(self, kind: Kind[T], values: Collection[T], ids: Ids, written_at: float) -> None:
        """Stores values, each under the id of its row."""
        stored = [kind.linked(it, ids) for it in resolved(self.connection, kind, tuple(values), ids)]
        watched = {ids.row(it.id) for it in values if it.closed_at is None}
        mine = [it for it in stored if it.closed_at is not None or it.id in watched]
        named = {"writer": self.writer} if self.writer else {}
        self._put(kind, mine, written_at=written_at, **named)
        self._put(kind, [it for it in stored if it.closed_at is None and it.id not in watched])  # others watch them

    def _put(self, kind: Kind[T], values: Sequence[T], **more: object) -> None:
        """Stores values as they are, in place of what was stored of them."""
        rows = [{"id": it.id, "closed_at": it.closed_at, "document": encode(it), **kind.row(it)} for it in values]
        put(self.connection, kind.table, [{**row, **more} for row in rows])
        self._put_bytes += sum(bounds.ROW_BYTES + len(row["document"]) for row in rows)
        if kind.table is schema.INCIDENTS:
            for some in chunks([it.id for it in values]):
                self.connection.execute(delete(schema.INCIDENT_NODES).where(schema.INCIDENT_NODES.c.id.in_(some)))
        nodes = [{"node": node, "id": it.id} for it in values for node in set(kind.nodes(it))]
        if nodes:
            self.connection.execute(schema.INCIDENT_NODES.insert(), nodes)

    def _store_digests(self, digests: Iterable[KeptDigest]) -> None:
        """Of what a run was like when an incident began the first one holds."""
        for it in map(self.ids.digest, digests):
            row = _digest_row(it)
            same = [column == row[column.name] for column in schema.DIGESTS.primary_key]
            if incident_of(it.run) is None or not count(self.connection, schema.DIGESTS, *same):
                put(self.connection, schema.DIGESTS, [row], later="made_at")

    def open_incidents(self, limit: int) -> tuple[Incident, ...]:
        """The newest that are open and that this collector goes on with: its own, and those that nobody watches any
        more."""
        it = schema.INCIDENTS.c
        with self.transaction() as connection:
            where = it.closed_at.is_(None), self._is_mine(schema.INCIDENTS, self._left_seconds)
            chosen = select(it.document).where(*where).order_by(it.id.desc()).limit(limit)
            found = reads.documents(connection, chosen, Incident)
        return tuple(each for each in found if self.ids.incidents.adopt(each.id))

    def closed_since(self, moment: float, limit: int) -> tuple[Incident, ...]:
        """The newest that were closed since then, whoever wrote them, oldest first."""
        with self.transaction() as connection:
            rows = reads.incident_rows(connection, IncidentQuery(since=moment, limit=limit)).incidents
        return tuple(it for it in reversed(rows) if it.closed_at is not None)

    def confirmations(self) -> tuple[Confirmation, ...]:
        """All measurements of suspects, the oldest first."""
        with self.transaction() as connection:
            return reads.confirmation_rows(connection)

    def nodes(self, since: float) -> Nodes:
        """What this collector goes on with, and which faults have ended since."""
        it = schema.FAULTS.c
        with self.transaction() as connection:
            mine = self._is_mine(schema.FAULTS, LEFT_FAULT_SECONDS)
            faults = reads.fault_rows(connection, it.closed_at.is_(None), mine, limit=2 * reads.MAX_FAULTS)
            names = reads.name_rows(connection, limit=reads.MAX_NAMES)
            ended = reads.fault_rows(connection, it.closed_at >= since)[::-1]
        return Nodes(tuple(each for each in faults if self.ids.faults.adopt(each.id)), names, ended)

    @property
    def _left_seconds(self) -> float:
        return max(LEFT_SECONDS, 3 * self.settings.quiet_seconds)

    def _is_mine(self, table: Table, left_seconds: float) -> ColumnElement[bool]:
        return or_(table.c.writer == self.writer, table.c.written_at < self.now() - left_seconds)

    def news(self) -> News:
        """Returns what others wrote since it was asked last."""
        it = schema.INCIDENTS.c
        with self.transaction() as connection:
            now = self.now()
            if time.monotonic() - self._opened_at >= self._left_seconds:
                self._close_left(now)
            since = now - WEEK_SECONDS if self._learnt_until < 0 else self._learnt_until
            others = select(it.document).where(it.written_at >= since, it.writer != self.writer)
            found = reads.documents(connection, others.order_by(it.written_at.desc()).limit(_MAX_NEWS), Incident)
            self._learnt_until = now
            return News(found[::-1], reads.confirmation_rows(connection))

    def _close_left(self, now: float) -> None:
        """Closes what nobody watches any more, where this collector has been there for long: after a time without the
        database all collectors are late."""
        self._close_unwritten(OF_INCIDENTS, now - self._left_seconds, "ended_while_down", now)
        self._close_unwritten(OF_FAULTS, now - WEEK_SECONDS, "gone", now)

    def _close_unwritten(self, kind: Kind[T], since: float, because: str, now: float) -> None:
        it = kind.table.c
        chosen = select(it.document).where(it.closed_at.is_(None), it.written_at < since).limit(1024)
        left = reads.documents(self.connection, chosen, kind.of)
        closed = [structs.replace(each, closed_at=each.seen_at, closed_because=because) for each in left]
        self._put(kind, closed, written_at=now)

    def name_writer(self, writer: str) -> None:
        """Has the rows that nobody's name is on go on with the collector of that name."""
        with self.transaction() as connection:
            for table in (schema.INCIDENTS, schema.FAULTS):
                connection.execute(update(table).where(table.c.writer == "").values(writer=writer))


def _name_row(it: NodeName) -> Row:
    return {"node": it.node, "machine": it.machine, "seen_at": it.seen_at, "document": encode(it)}


def _confirmation_row(it: Confirmation) -> Row:
    return {"node": it.node, "at": it.at, "document": encode(it)}


def _digest_row(kept: KeptDigest) -> Row:
    it = kept.digest
    return {
        "owner": kept.owner,
        "job_id": kept.job_id,
        "started_at": it.started_at or 0.0,
        "run": kept.run,
        "script": it.script or "",
        "world_size": it.world_size,
        "made_at": it.made_at or 0.0,
        "document": encode(it),
    }
