"""The database of incidents, of bounded size and age: what a collector writes together, and what is read. Each kind of
row has a module of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from laggard.collector.incidents import (
    confirmation_rows,
    digest_rows,
    fault_rows,
    incident_rows,
    node_rows,
    postgres,
    sqlite_file,
)
from laggard.collector.incidents.confirmation_rows import MAX_CONFIRMATIONS
from laggard.collector.incidents.engine import DatabaseError, Engine, Store
from laggard.collector.incidents.fault import Fault
from laggard.collector.incidents.fault_rows import MachineRows
from laggard.collector.incidents.incident import Incident, IncidentQuery
from laggard.collector.incidents.incident_rows import Rows
from laggard.collector.incidents.kept_digest import AskedDigest, KeptDigest
from laggard.collector.incidents.node_rows import NodeRows
from laggard.collector.incidents.schema import VERSION
from laggard.database_url import is_database_url
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation

__all__ = [
    "MAX_CONFIRMATIONS",
    "VERSION",
    "DatabaseError",
    "IncidentDatabase",
    "Rows",
    "read_confirmations",
    "read_digest",
    "read_faults",
    "read_incidents",
    "read_machine",
]

FULL_SHARE, PRUNED_SHARE = 0.9, 0.8
"""The share of max_bytes from which on incidents are dropped, and that until which they are."""


class IncidentDatabase:
    """The collector's connection, which writes. To be used by one thread at a time."""

    def __init__(self, engine: Store, max_bytes: int, keep_seconds: float) -> None:
        self.engine = engine
        self._max_bytes, self._keep_seconds = max_bytes, keep_seconds

    @classmethod
    def open(cls, path: str, max_bytes: int, keep_seconds: float) -> IncidentDatabase:
        """Raises DatabaseError."""
        return cls(sqlite_file.SqliteFile.open(path, max_bytes), max_bytes, keep_seconds)

    def close(self) -> None:
        self.engine.close()

    def bytes(self) -> int:
        """The size of the database. Raises DatabaseError."""
        with self.engine.told():
            return self.engine.bytes()

    def write(self, incidents: Iterable[Incident], now: float) -> int:
        """Stores the incidents, in place of what was stored of them, and drops what is too old or too much. Returns the
        size of the database. Raises DatabaseError, and then nothing is stored."""
        rows, engine = tuple(incidents), self.engine
        with engine.told():
            with engine.transaction():
                incident_rows.drop_older(engine, now - self._keep_seconds)
            try:
                self._store_incidents(rows)
            except Exception as error:
                if not engine.is_full(error):
                    raise
                self._make_room(PRUNED_SHARE / 2)
                self._store_incidents(rows)
            if engine.used() > FULL_SHARE:
                self._make_room(PRUNED_SHARE)
            engine.give_back()
            return engine.bytes()

    def _store_incidents(self, incidents: tuple[Incident, ...]) -> None:
        with self.engine.transaction():
            incident_rows.store(self.engine, incidents)

    def _make_room(self, share: float) -> None:
        """Drops incidents until `share` of max_bytes is taken, or none is left that is closed."""
        while self.engine.used() > share and incident_rows.drop_some_of_heaviest(self.engine):
            pass

    def keep_digests(self, kept: Iterable[KeptDigest], now: float) -> None:
        """Stores digests, in place of those of the same run, and drops what is too old or too much. Raises
        DatabaseError, and then nothing is stored."""
        with self._changing() as engine:
            digest_rows.keep(engine, kept, now - self._keep_seconds, self._max_bytes)

    def keep_confirmations(self, confirmations: Iterable[Confirmation], now: float) -> None:
        """Stores measurements of suspects, and drops what is too old or too much. Raises DatabaseError, and then
        nothing is stored."""
        with self._changing() as engine:
            confirmation_rows.keep(engine, confirmations, now - self._keep_seconds)

    def keep_nodes(self, rows: NodeRows, now: float) -> None:
        """Stores faults and names, in place of what was stored of them, and drops what is too old or too much. Raises
        DatabaseError, and then nothing is stored."""
        with self._changing() as engine:
            node_rows.keep(engine, rows, now - self._keep_seconds, self._max_bytes)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Engine]:
        with self.engine.told(), self.engine.transaction():
            yield self.engine

    def open_incidents(self, limit: int) -> tuple[Incident, ...]:
        """The newest that are open. Raises DatabaseError."""
        with self.engine.told():
            return incident_rows.read(self.engine, IncidentQuery(open_only=True, limit=limit)).incidents

    def closed_since(self, moment: float, limit: int) -> tuple[Incident, ...]:
        """The newest that were closed since then, oldest first. Raises DatabaseError."""
        with self.engine.told():
            rows = incident_rows.read(self.engine, IncidentQuery(since=moment, limit=limit)).incidents
        return tuple(it for it in reversed(rows) if it.closed_at is not None)

    def confirmations(self) -> tuple[Confirmation, ...]:
        """All measurements of suspects, the oldest first. Raises DatabaseError."""
        with self.engine.told():
            return confirmation_rows.read(self.engine)

    def open_nodes(self, since: float) -> tuple[NodeRows, tuple[Fault, ...]]:
        """The open faults, the names, and the faults that have ended since. Raises DatabaseError."""
        with self.engine.told():
            return node_rows.read_open(self.engine, since)


def reading(place: str) -> contextlib.AbstractContextManager[Engine]:
    """A connection that only reads, also while a collector writes. Raises DatabaseError."""
    return postgres.reading(place) if is_database_url(place) else sqlite_file.reading(place)


def read_incidents(place: str, query: IncidentQuery) -> tuple[Rows, int]:
    """The incidents that a database holds, and how many of them are open. Raises DatabaseError."""
    with reading(place) as engine:
        return incident_rows.read(engine, query), incident_rows.count_open(engine)


def read_digest(place: str, asked: AskedDigest) -> Digest | None:
    """The newest digest that fits; None where there is none. Raises DatabaseError."""
    with reading(place) as engine:
        return digest_rows.read(engine, asked)


def read_confirmations(place: str) -> tuple[Confirmation, ...]:
    """All measurements of suspects, the oldest first. Raises DatabaseError."""
    with reading(place) as engine:
        return confirmation_rows.read(engine)


def read_machine(place: str, node: str, limit: int) -> MachineRows:
    """The faults and names of the machine that has this name. Raises DatabaseError."""
    with reading(place) as engine:
        return fault_rows.read_machine(engine, node, limit)


def read_faults(place: str, since: float) -> tuple[Fault, ...]:
    """The faults of all machines that were open then or later. Raises DatabaseError."""
    with reading(place) as engine:
        return fault_rows.read_since(engine, since)
