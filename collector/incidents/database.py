"""The database of incidents, of bounded size and age: what a collector writes together, and what is read. A file of
SQLite, which one collector writes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from laggard.collector.incidents import postgres
from laggard.collector.incidents.incident import AskedDigest, Fault, Incident, IncidentQuery, KeptDigest
from laggard.collector.incidents.tables import (
    TABLES,
    VERSION,
    DatabaseError,
    Engine,
    MachineRows,
    NodeRows,
    Rows,
    Store,
    bound_node_rows,
    count_open_incidents,
    drop_incidents_of_heaviest,
    drop_older_incidents,
    keep_confirmation_rows,
    keep_digest_rows,
    read_confirmation_rows,
    read_digest_row,
    read_ended_faults,
    read_faults_since,
    read_incident_rows,
    read_machine_rows,
    read_open_faults,
    store_fault_rows,
    store_incident_rows,
    store_names,
)
from laggard.kit.address import is_database_url
from laggard.kit.words import printable_line
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation

# An SQLite file of bounded size. One collector writes it, any number of readers read it.

_SQLITE_FULL: Final = 13
"""The error code sqlite3.SQLITE_FULL, which Python 3.10 does not have."""

_APPLICATION: Final = 0x6C616767  # "lagg", in the file's header

_MODE: Final = 0o600
"""The mode of new files: they hold all users' jobs. SQLite gives those beside the database the database's own."""


class SqliteReader:
    """A connection."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection

    def run(self, text: str, words: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(text, words).fetchall()

    def many(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(text, rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def told(self) -> contextlib.AbstractContextManager[None]:
        return told_of_file(self.path)


class SqliteFile(SqliteReader):
    """The collector's connection, which writes. `lock`: a descriptor that is held as long as it writes."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _make(path)
            _check_is_file(path)
            connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        except BaseException:
            os.close(self.lock)
            raise
        super().__init__(path, connection)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str, max_bytes: int) -> SqliteFile:
        """Raises DatabaseError."""
        with told_of_file(path):
            return cls(path, max_bytes)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
        os.close(self.lock)

    def used(self) -> float:
        pages = int(self._pragma("page_count")) - int(self._pragma("freelist_count"))
        return pages * int(self._pragma("page_size")) / self._max_bytes

    def bytes(self) -> int:
        return int(self._pragma("page_count")) * int(self._pragma("page_size"))

    def give_back(self) -> None:
        self.run("PRAGMA incremental_vacuum")

    def is_full(self, error: Exception) -> bool:
        is_one = getattr(error, "sqlite_errorcode", None) == _SQLITE_FULL or "full" in str(error)
        return isinstance(error, sqlite3.OperationalError) and is_one

    def _prepare(self) -> None:
        """Makes the tables in a new file; a file that is something else is left as it is."""
        run = self.connection.execute
        _refuse_programs(self.connection)
        if is_new := run("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            run("PRAGMA auto_vacuum = INCREMENTAL")
        else:
            _refuse_other_version(self.connection)
        found = run("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise sqlite3.DatabaseError(f"it is damaged: {found and found[0]}")
        run("PRAGMA journal_mode = WAL").fetchall()
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA journal_size_limit = {4 << 20}").fetchall()
        if is_new:
            self._make_tables()
        most = max(16, self._max_bytes // int(self._pragma("page_size")))
        run(f"PRAGMA max_page_count = {most}").fetchall()

    def _make_tables(self) -> None:
        with self.transaction():
            for statement in TABLES.split(";"):
                self.connection.execute(statement)
            self.connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            self.connection.execute(f"PRAGMA user_version = {VERSION}")

    def _pragma(self, name: str) -> int | str:
        value: int | str = self.connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value


@contextlib.contextmanager
def reading_file(path: str) -> Iterator[SqliteReader]:
    """The file is only read, also while a collector writes it. Raises DatabaseError."""
    with told_of_file(path), contextlib.closing(_connect_to_read(path)) as connection:
        yield SqliteReader(path, connection)


def _make(path: str) -> None:
    """Makes the file where there is none; the mode of one that is there stays. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))


def _check_is_file(path: str) -> None:
    """Raises OSError, also for what is no regular file: a pipe is waited for without end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)


def _refuse_programs(connection: sqlite3.Connection) -> None:
    """Keeps a file that somebody else made from running anything when it is read or written. Raises
    sqlite3.DatabaseError where it holds triggers, views, virtual tables, or tables that compute a column."""
    connection.execute("PRAGMA trusted_schema = OFF")
    found = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
        " OR (type = 'table' AND (sql LIKE '% AS %(%' OR sql LIKE '%GENERATED%' OR sql LIKE '% AS(%'))"
        " OR (type = 'index' AND sql LIKE '%(%(%') LIMIT 1"
    ).fetchone()
    if found is not None:
        raise sqlite3.DatabaseError(f"it is no database of incidents: it has {found[0]!r}, which laggard has not made")


def _refuse_other_version(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where the tables are of another version, or another program's."""
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if found != [_APPLICATION, VERSION]:
        raise sqlite3.DatabaseError(f"it is no database of incidents of version {VERSION}")


def _connect_to_read(path: str) -> sqlite3.Connection:
    _check_is_file(path)
    place = f"file:{quote(os.path.abspath(path))}?mode=ro"
    for uri in (place, f"{place}&immutable=1"):  # the second: a copy in a folder that is only readable
        connection = sqlite3.connect(uri, uri=True, timeout=5.0)
        try:
            _refuse_programs(connection)
            _refuse_other_version(connection)
            return connection
        except sqlite3.Error as error:
            connection.close()
            if uri != place or "unable to open" not in str(error):
                raise
    raise AssertionError("one of the two returns or raises")


@contextlib.contextmanager
def told_of_file(path: str) -> Iterator[None]:
    """Turns what SQLite and the kernel report about the file into a DatabaseError."""
    try:
        yield
    except BlockingIOError:
        text = f"{path} is written by another collector: give this one another file (incidents_database)"
        raise DatabaseError(text) from None
    except OSError as error:
        raise DatabaseError(f"{error.filename or path}: {error.strerror}") from None
    except sqlite3.Error as error:
        what_to_do = "move it away, and a new one is begun, or name another file"
        if "full" in str(error):
            what_to_do = "free some of the disk, or raise incidents_max_bytes"
        text = printable_line(f"{path} cannot be used: {error}; {what_to_do}")
        raise DatabaseError(text) from None


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
        return cls(SqliteFile.open(path, max_bytes), max_bytes, keep_seconds)

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
                drop_older_incidents(engine, now - self._keep_seconds)
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
            store_incident_rows(self.engine, incidents)

    def _make_room(self, share: float) -> None:
        """Drops incidents until `share` of max_bytes is taken, or none is left that is closed."""
        while self.engine.used() > share and drop_incidents_of_heaviest(self.engine):
            pass

    def keep_digests(self, kept: Iterable[KeptDigest], now: float) -> None:
        """Stores digests, in place of those of the same run, and drops what is too old or too much. Raises
        DatabaseError, and then nothing is stored."""
        with self._changing() as engine:
            keep_digest_rows(engine, kept, now - self._keep_seconds, self._max_bytes)

    def keep_confirmations(self, confirmations: Iterable[Confirmation], now: float) -> None:
        """Stores measurements of suspects, and drops what is too old or too much. Raises DatabaseError, and then
        nothing is stored."""
        with self._changing() as engine:
            keep_confirmation_rows(engine, confirmations, now - self._keep_seconds)

    def keep_nodes(self, rows: NodeRows, now: float) -> None:
        """Stores faults and names, in place of what was stored of them, and drops what is too old or too much. Raises
        DatabaseError, and then nothing is stored."""
        with self._changing() as engine:
            store_fault_rows(engine, rows.faults)
            store_names(engine, rows.names)
            bound_node_rows(engine, now - self._keep_seconds, self._max_bytes)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Engine]:
        with self.engine.told(), self.engine.transaction():
            yield self.engine

    def open_incidents(self, limit: int) -> tuple[Incident, ...]:
        """The newest that are open. Raises DatabaseError."""
        with self.engine.told():
            return read_incident_rows(self.engine, IncidentQuery(open_only=True, limit=limit)).incidents

    def closed_since(self, moment: float, limit: int) -> tuple[Incident, ...]:
        """The newest that were closed since then, oldest first. Raises DatabaseError."""
        with self.engine.told():
            rows = read_incident_rows(self.engine, IncidentQuery(since=moment, limit=limit)).incidents
        return tuple(it for it in reversed(rows) if it.closed_at is not None)

    def confirmations(self) -> tuple[Confirmation, ...]:
        """All measurements of suspects, the oldest first. Raises DatabaseError."""
        with self.engine.told():
            return read_confirmation_rows(self.engine)

    def open_nodes(self, since: float) -> tuple[NodeRows, tuple[Fault, ...]]:
        """The open faults, the names, and the faults that have ended since. Raises DatabaseError."""
        with self.engine.told():
            return NodeRows(*read_open_faults(self.engine)), read_ended_faults(self.engine, since)


def reading(place: str) -> contextlib.AbstractContextManager[Engine]:
    """A connection that only reads, also while a collector writes. Raises DatabaseError."""
    return postgres.reading(place) if is_database_url(place) else reading_file(place)


def read_incidents(place: str, query: IncidentQuery) -> tuple[Rows, int]:
    """The incidents that a database holds, and how many of them are open. Raises DatabaseError."""
    with reading(place) as engine:
        return read_incident_rows(engine, query), count_open_incidents(engine)


def read_digest(place: str, asked: AskedDigest) -> Digest | None:
    """The newest digest that fits; None where there is none. Raises DatabaseError."""
    with reading(place) as engine:
        return read_digest_row(engine, asked)


def read_confirmations(place: str) -> tuple[Confirmation, ...]:
    """All measurements of suspects, the oldest first. Raises DatabaseError."""
    with reading(place) as engine:
        return read_confirmation_rows(engine)


def read_machine(place: str, node: str, limit: int) -> MachineRows:
    """The faults and names of the machine that has this name. Raises DatabaseError."""
    with reading(place) as engine:
        return read_machine_rows(engine, node, limit)


def read_faults(place: str, since: float) -> tuple[Fault, ...]:
    """The faults of all machines that were open then or later. Raises DatabaseError."""
    with reading(place) as engine:
        return read_faults_since(engine, since)
