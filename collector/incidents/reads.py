"""What is read of a database of incidents: statements that SQLite and PostgreSQL both take, over a connection that only
reads. One row's damage costs that row.

A place is a file's path, or a URL that begins with `postgresql://`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, exists, func, not_, or_, select
from sqlalchemy.exc import SQLAlchemyError

from laggard.collector.incidents import postgres, schema, sqlite
from laggard.collector.incidents.incident import (
    FIRST,
    LAST,
    AskedDigest,
    Fault,
    Incident,
    IncidentQuery,
    MachineRows,
    NodeName,
)
from laggard.kit.address import is_database_url, without_login
from laggard.kit.words import printable_line
from laggard.model import JobKey
from laggard.wire import WireError, decode
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation

MAX_READERS: Final = 4
"""The most connections of one process that read at a time."""

MAX_FAULTS: Final = 16_384
"""The most faults that are over in one answer, and twice as many that are open."""

MAX_NAMES: Final = 65_536
"""The most names that a collector goes on with."""

MAX_CONFIRMATIONS: Final = 1024
"""The most measurements of suspects; beyond them the oldest are dropped."""

MAX_OF_JOB: Final = 128
"""The most incidents of one job that are taken over, the last ones: twice as many as can be open."""

_readers = threading.BoundedSemaphore(MAX_READERS)

T = TypeVar("T")


def shown(place: str) -> str:
    return without_login(place) if is_database_url(place) else place


@contextlib.contextmanager
def told(place: str) -> Iterator[None]:
    """Turns what a database, a server and the kernel report into a DatabaseError."""
    try:
        yield
    except BlockingIOError:
        text = f"{place} is written by another collector: give this one another file (incidents_database)"
        raise schema.DatabaseError(text) from None
    except OSError as error:
        raise schema.DatabaseError(f"{error.filename or place}: {error.strerror}") from None
    except SQLAlchemyError as error:
        why = getattr(error, "orig", None) or error
        text = printable_line(str(why), 300)
        kind, what_to_do = schema.DatabaseError, postgres.what_to_do(why) if is_database_url(place) else _NO_DATABASE
        if not is_database_url(place) and "full" in text:
            kind, what_to_do = schema.FullError, "free some of the disk, or raise incidents_max_bytes"
        line = f"{shown(place)} cannot be used: {text}{'; ' if what_to_do else ''}{what_to_do}"
        raise kind(printable_line(line)) from None


_NO_DATABASE: Final = "move it away, and a new one is begun, or name another file"


@functools.lru_cache(16)
def _engine(place: str) -> Engine:
    if is_database_url(place):
        return postgres.engine_of(place, isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return sqlite.engine_to_read(place)


@contextlib.contextmanager
def reading(place: str) -> Iterator[Connection]:
    """A connection that only reads, all of one moment, also while a collector writes. Raises DatabaseError."""
    if not _readers.acquire(timeout=postgres.CONNECT_SECONDS):
        raise schema.DatabaseError(f"{shown(place)}: {MAX_READERS} answers are read already, and take over 5 s")
    try:
        with told(place), _engine(place).connect() as connection, connection.begin():
            if (found := schema.version_of(connection)) != schema.VERSION:
                raise schema.DatabaseError(f"{shown(place)} {schema.wrong_version(found)}")
            yield connection
    finally:
        _readers.release()


def decoded(documents: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    """Those that can be read."""
    for document in documents:
        with contextlib.suppress(WireError):
            yield decode(document, kind)


def documents(connection: Connection, chosen: Select[Any], kind: type[T]) -> tuple[T, ...]:
    """`chosen`: selects the documents alone."""
    return tuple(decoded(connection.scalars(chosen), kind))


class Rows(NamedTuple):
    """Incidents, the newest first. `last_id` is the smallest id that was read, None where all were; `damaged` counts
    rows that are no incidents. `opened`: how many of all are open."""

    incidents: tuple[Incident, ...]
    last_id: int | None = None
    damaged: int = 0
    opened: int = 0


def incident_rows(connection: Connection, query: IncidentQuery) -> Rows:
    it = schema.INCIDENTS.c
    on_node = exists().where(schema.INCIDENT_NODES.c.id == it.id, schema.INCIDENT_NODES.c.node == query.node)
    asked: tuple[tuple[Any, Callable[[Any], ColumnElement[bool]]], ...] = (
        (query.job_id, lambda job_id: it.job_id == job_id),
        (query.owner, lambda owner: it.owner == owner),
        (query.since, lambda since: or_(it.closed_at.is_(None), it.closed_at >= since)),
        (query.before, lambda before: it.id < before),
        (query.node, lambda _: on_node),
        (query.open_only or None, lambda _: it.closed_at.is_(None)),
    )
    where = [condition(value) for value, condition in asked if value is not None]
    rows = connection.execute(select(it.id, it.document).where(*where).order_by(it.id.desc()).limit(query.limit)).all()
    incidents = tuple(decoded((document for _, document in rows), Incident))
    opened = connection.scalar(select(func.count()).select_from(schema.INCIDENTS).where(it.closed_at.is_(None))) or 0
    return Rows(incidents, rows[-1][0] if len(rows) == query.limit else None, len(rows) - len(incidents), opened)


def read_incidents(place: str, query: IncidentQuery) -> Rows:
    """The incidents that a database holds. Raises DatabaseError."""
    with reading(place) as connection:
        return incident_rows(connection, query)


def read_of_jobs(place: str, keys: Iterable[JobKey], since: float) -> tuple[Incident, ...]:
    """What goes with jobs that another collector takes over, of what was open at `since` (Unix seconds) or later.
    Raises DatabaseError."""
    asked = (IncidentQuery(key.job_id, key.owner, since, limit=MAX_OF_JOB) for key in keys)
    with reading(place) as connection:
        return tuple(it for query in asked for it in incident_rows(connection, query).incidents)


def read_digest(place: str, asked: AskedDigest) -> Digest | None:
    """The newest digest that fits; None where there is none. Raises DatabaseError."""
    it = schema.DIGESTS.c
    where = [it.owner == asked.owner, it.run == asked.run]
    itself = and_(it.job_id == asked.job_id, it.started_at == asked.started_at)
    if asked.run == LAST:
        where += [it.script == asked.script, it.world_size == asked.world_size, not_(itself)]
    elif asked.run == FIRST:
        where += [itself]
    chosen = select(it.document).where(*where).order_by(it.made_at.desc()).limit(1)
    with reading(place) as connection:
        return next(iter(documents(connection, chosen, Digest)), None)


def confirmation_rows(connection: Connection) -> tuple[Confirmation, ...]:
    """All measurements of suspects, the oldest first."""
    it = schema.CONFIRMATIONS.c
    chosen = select(it.document).order_by(it.at.desc()).limit(MAX_CONFIRMATIONS)
    return documents(connection, chosen, Confirmation)[::-1]


def read_confirmations(place: str) -> tuple[Confirmation, ...]:
    """All measurements of suspects, the oldest first. Raises DatabaseError."""
    with reading(place) as connection:
        return confirmation_rows(connection)


def fault_rows(connection: Connection, *where: ColumnElement[bool], limit: int = MAX_FAULTS) -> tuple[Fault, ...]:
    """The newest first."""
    chosen = select(schema.FAULTS.c.document).where(*where).order_by(schema.FAULTS.c.id.desc()).limit(limit)
    return documents(connection, chosen, Fault)


def read_faults(place: str, since: float) -> tuple[Fault, ...]:
    """The faults of all machines that were open then or later. Raises DatabaseError."""
    with reading(place) as connection:
        return fault_rows(connection, or_(schema.FAULTS.c.closed_at.is_(None), schema.FAULTS.c.closed_at >= since))


def name_rows(connection: Connection, *where: ColumnElement[bool], limit: int) -> tuple[NodeName, ...]:
    """Those first that were seen last."""
    chosen = select(schema.NAMES.c.document).where(*where).order_by(schema.NAMES.c.seen_at.desc()).limit(limit)
    return documents(connection, chosen, NodeName)


def read_machine(place: str, node: str, limit: int) -> MachineRows:
    """The faults of the machine that has this name now, under whatever name it had them, and its names. Raises
    DatabaseError."""
    of_name, fault, name = schema.FAULTS.c.node == node, schema.FAULTS.c, schema.NAMES.c
    with reading(place) as connection:
        named = next(iter(name_rows(connection, name.node == node, limit=1)), None)
        if named is None or not named.machine:
            return MachineRows(fault_rows(connection, of_name, limit=limit), (named,) if named else ())
        of_machine = or_(fault.machine == named.machine, and_(fault.machine == "", of_name))
        others = select(func.max(name.seen_at)).where(name.node == node, name.machine.not_in((named.machine, "")))
        return MachineRows(
            fault_rows(connection, of_machine, limit=limit),
            name_rows(connection, name.machine == named.machine, limit=64),
            connection.scalar(others) or 0.0,
        )
