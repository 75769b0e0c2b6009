"""The database of incidents, opened to be written: a file, or PostgreSQL where its place is a URL."""

from __future__ import annotations

from laggard.collector.incidents.database import IncidentDatabase
from laggard.collector.incidents.postgres import PostgresStore
from laggard.collector.incidents.shared_database import SharedDatabase
from laggard.collector.incidents.shared_rows import SharedIds
from laggard.database_url import is_database_url


def open_database(
    place: str,
    max_bytes: int,
    keep_seconds: float,
    ids: SharedIds,
    writer: str = "",
    quiet_seconds: float = 0.0,
) -> IncidentDatabase:
    """`writer`: the name under which this collector writes a database that others write, too; `ids`: what it knows of
    its rows there. Raises DatabaseError."""
    if not is_database_url(place):
        return IncidentDatabase.open(place, max_bytes, keep_seconds)
    engine = PostgresStore.open(place, max_bytes, writer)
    return SharedDatabase(engine, max_bytes, keep_seconds, ids, quiet_seconds)
