"""The database of incidents that several collectors write: each knows its own rows again, and finds those of others.

A row is written again while its collector watches what it tells of. One that nobody has written for long is of a
collector that is gone, and of nothing that another watches: whoever sees that first closes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector.incidents import (
    confirmation_rows,
    digest_rows,
    fault_rows,
    incident_rows,
    node_rows,
)
from laggard.collector.incidents.database import IncidentDatabase
from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.fault import Fault
from laggard.collector.incidents.incident import WEEK_SECONDS, Incident
from laggard.collector.incidents.kept_digest import KeptDigest, incident_of, of_incident
from laggard.collector.incidents.node_rows import NodeRows
from laggard.collector.incidents.postgres import PostgresStore
from laggard.collector.incidents.shared_rows import SharedIds, store_faults, store_incidents
from laggard.wire.exclusion import Confirmation

LEFT_SECONDS: Final = 900.0
"""The time after which an incident that nobody has written is one that nobody watches. It is written once a minute
while somebody does, and closed when its job has been silent for incident_quiet_seconds."""

LEFT_FAULT_SECONDS: Final = 3 * 3600.0
"""The same of a fault, which is written once an hour."""

_MAX_NEWS: Final = 4096
"""The most incidents of others that are learnt at once, the last ones."""


class News(NamedTuple):
    """News of other collectors: incidents that they wrote, and all measurements of suspects."""

    incidents: tuple[Incident, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()


class SharedDatabase(IncidentDatabase):
    """A collector's connection to a database that others write, too. `ids`: outlives it."""

    def __init__(
        self, engine: PostgresStore, max_bytes: int, keep_seconds: float, ids: SharedIds, quiet_seconds: float
    ) -> None:
        super().__init__(engine, max_bytes, keep_seconds)
        self._store, self._ids = engine, ids
        self._left_seconds = max(LEFT_SECONDS, 3 * quiet_seconds)
        self._opened_at = time.monotonic()
        self._learnt_until: float | None = None

    def _store_incidents(self, incidents: tuple[Incident, ...]) -> None:
        engine, writer = self._store, self._store.writer
        with self._ids.incidents.kept(), engine.transaction():
            stored = store_incidents(engine, incidents, self._ids.incidents)
            mine = {self._ids.incidents.row(it.id) or it.id for it in incidents if it.closed_at is None}
            written = [(writer, it.id) for it in stored if it.id in mine or it.closed_at is not None]
            engine.many("UPDATE incidents SET writer = ?, written_at = now() WHERE id = ?", written)

    def keep_nodes(self, rows: NodeRows, now: float) -> None:
        engine, writer = self._store, self._store.writer
        with self._ids.faults.kept(), self._changing():
            faults = store_faults(engine, rows.faults, self._ids.faults)
            text = "UPDATE faults SET writer = ?, written_at = now() WHERE id = ?"
            engine.many(text, [(writer, it.id) for it in faults])
            fault_rows.store_later_names(engine, rows.names)
            node_rows.bound(engine, now - self._keep_seconds, self._max_bytes)

    def keep_digests(self, kept: Iterable[KeptDigest], now: float) -> None:
        """Stores digests as in a file, but of what a run was like when an incident began the first one holds."""
        numbered = [self._numbered(it) for it in kept]
        with self._changing() as engine:
            digest_rows.keep(engine, [it for it in numbered if not digest_rows.has_first(engine, it)],
                             now - self._keep_seconds, self._max_bytes)  # fmt: skip

    def _numbered(self, it: KeptDigest) -> KeptDigest:
        number = incident_of(it.run)
        return it if number is None else it._replace(run=of_incident(self._ids.incidents.row(number) or number))

    def open_incidents(self, limit: int) -> tuple[Incident, ...]:
        """The newest that are open and that this collector goes on with: its own, and those that nobody watches any
        more. Raises DatabaseError."""
        text = f"SELECT document FROM incidents WHERE closed_at IS NULL AND {_MINE} ORDER BY id DESC LIMIT ?"
        with self.engine.told():
            found = documents(self.engine.run(text, (self._store.writer, self._left_seconds, limit)), Incident)
        with self._ids.incidents.kept():
            return tuple(it for it in found if self._ids.incidents.inherit(it.id))

    def open_nodes(self, since: float) -> tuple[NodeRows, tuple[Fault, ...]]:
        run, writer = self.engine.run, self._store.writer
        with self.engine.told():
            text = f"SELECT document FROM faults WHERE closed_at IS NULL AND {_MINE} ORDER BY id DESC LIMIT ?"
            faults = documents(run(text, (writer, LEFT_FAULT_SECONDS, 2 * fault_rows.MAX_FAULTS)), Fault)
            _, names = fault_rows.read_open(self.engine)
            ended = fault_rows.read_ended(self.engine, since)
        with self._ids.faults.kept():
            faults = tuple(it for it in faults if self._ids.faults.inherit(it.id))
        return NodeRows(faults, names), ended

    def news(self) -> News:
        """Returns what others wrote since it was asked last. Raises DatabaseError."""
        with self._changing() as engine:
            if time.monotonic() - self._opened_at >= self._left_seconds:
                self._close_left()
            now = float(engine.run("SELECT extract(epoch FROM now())")[0][0])
            since = now - WEEK_SECONDS if self._learnt_until is None else self._learnt_until
            text = (
                "SELECT document FROM incidents WHERE written_at >= to_timestamp(?) AND writer != ?"
                " ORDER BY written_at DESC LIMIT ?"
            )
            found = documents(engine.run(text, (since, self._store.writer, _MAX_NEWS)), Incident)[::-1]
            self._learnt_until = now
            return News(found, confirmation_rows.read(engine))

    def _close_left(self) -> None:
        """Closes what nobody watches any more, where this collector has been there for long: after a time without the
        database all collectors are late."""
        engine = self._store
        text = f"SELECT document FROM incidents WHERE closed_at IS NULL AND {_LEFT} LIMIT 1024"
        left = documents(engine.run(text, (self._left_seconds,)), Incident)
        because = "ended_while_down"
        closed = [structs.replace(it, closed_at=it.seen_at, closed_because=because) for it in left]
        incident_rows.store(engine, closed)
        engine.many("UPDATE incidents SET written_at = now() WHERE id = ?", [(it.id,) for it in closed])
        text = f"SELECT document FROM faults WHERE closed_at IS NULL AND {_LEFT} LIMIT 1024"
        faults = documents(engine.run(text, (WEEK_SECONDS,)), Fault)
        fault_rows.store(engine, [structs.replace(it, closed_at=it.seen_at, closed_because="gone") for it in faults])


_LEFT: Final = "written_at < now() - make_interval(secs => ?)"
_MINE: Final = f"(writer = ? OR {_LEFT})"
