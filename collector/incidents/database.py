"""Incidents in an SQLite file of bounded size and age. One collector writes a file, any number of readers read it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import quote

from laggard.collector.incidents import advice_rows, notice_rows
from laggard.collector.incidents.fault import Fault
from laggard.collector.incidents.incident import Incident, IncidentQuery
from laggard.collector.incidents.kept_advice import AdviceQuery, RunAdvice
from laggard.collector.incidents.kept_digest import FIRST, LAST, AskedDigest, KeptDigest
from laggard.collector.incidents.loss import Loss
from laggard.collector.incidents.node_tables import (
    SCHEMA,
    MachineRows,
    NodeRows,
    drop_beside,
    faults_since,
    fill_from_incidents,
    has_node_tables,
    keep_beside,
    keep_node_rows,
    losses_since,
    machine_rows,
    open_rows,
    runs_since,
)
from laggard.collector.incidents.notice import NOTHING, Notice, NoticeChanges, Told
from laggard.collector.incidents.run import Run
from laggard.text.words import printable_line
from laggard.wire import WireError, decode, encode
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation

VERSION: Final = 5
"""The version of the tables, in the file's `user_version`. Files of any earlier version are brought up to it."""

MAX_LOSSES: Final = 200_000
"""The most losses that one answer is made from, the newest."""

MAX_DIGESTS: Final = 1024
"""The most digests of runs; beyond them the oldest of the user who has the most are dropped."""

MAX_CONFIRMATIONS: Final = 1024
"""The most measurements of suspects; beyond them the oldest are dropped."""

DIGESTS_SHARE, MAX_DIGEST_BYTES = 4, 16 << 10
"""Digests of this size, of which the largest jobs' are, may take a quarter of max_bytes."""

FULL_SHARE, PRUNED_SHARE = 0.9, 0.8
"""The share of max_bytes from which on incidents are dropped, and that until which they are."""

_SQLITE_FULL: Final = 13
"""The error code sqlite3.SQLITE_FULL, which Python 3.10 does not have."""

_APPLICATION: Final = 0x6C616767  # "lagg", in the file's header

_MODE: Final = 0o600
"""The mode of new files: they hold all users' jobs. SQLite gives those beside the database the database's own."""

_SCHEMA = """
CREATE TABLE incidents (
    id INTEGER PRIMARY KEY,
    owner INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    closed_at REAL,
    document BLOB NOT NULL
) STRICT;
CREATE INDEX of_job ON incidents (job_id, id);
CREATE INDEX by_end ON incidents (closed_at);
"""

_MIGRATIONS = {
    1: """
CREATE TABLE digests (
    owner INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    started_at REAL NOT NULL,
    run TEXT NOT NULL,
    script TEXT NOT NULL,
    world_size INTEGER NOT NULL,
    made_at REAL NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (owner, job_id, started_at, run)
) STRICT;
CREATE INDEX of_script ON digests (owner, script, world_size, made_at);
""",
    2: SCHEMA,
    3: notice_rows.TABLES + advice_rows.TABLES,
    4: """
CREATE TABLE confirmations (
    node TEXT NOT NULL,
    at REAL NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (node, at)
) STRICT;
""",
}
"""The statements, by version, that make the next one of a file."""

_KEEP_DIGEST = "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

_WRITE = "INSERT OR REPLACE INTO incidents (id, owner, job_id, closed_at, document) VALUES (?, ?, ?, ?, ?)"


class DatabaseError(Exception):
    """The file cannot be used. The text is one line that names it and says what is wrong and what to do."""


class Rows(NamedTuple):
    """Incidents, the newest first. `last_id` is the smallest id that was read, None where all were; `damaged` counts
    rows that are no incidents."""

    incidents: tuple[Incident, ...]
    last_id: int | None = None
    damaged: int = 0


class IncidentDatabase:
    """The collector's connection, which writes. To be used by one thread at a time."""

    def __init__(self, path: str, max_bytes: int, keep_seconds: float) -> None:
        self.path = path
        self._max_bytes, self._keep_seconds = max_bytes, keep_seconds
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _make(path)
            _check_is_file(path)
            self._connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        except BaseException:
            os.close(self._lock)
            raise
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str, max_bytes: int, keep_seconds: float) -> IncidentDatabase:
        """Raises DatabaseError."""
        with told(path):
            return cls(path, max_bytes, keep_seconds)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        os.close(self._lock)

    def write(self, incidents: Iterable[Incident], now: float, notices: NoticeChanges = NOTHING) -> int:
        """Stores the incidents, in place of what was stored of them, and with them what is to be told of them, and
        drops what is too old or too much. Returns the size of the file in bytes. Raises DatabaseError, and then nothing
        is stored."""
        rows = tuple(incidents)
        with told(self.path):
            with self._transaction():
                self._drop("SELECT id FROM incidents WHERE closed_at < ?", (now - self._keep_seconds,))
            try:
                self._store(rows, notices)
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", None) != _SQLITE_FULL and "full" not in str(error):
                    raise
                self._make_room(PRUNED_SHARE / 2)
                self._store(rows, notices)
            if self._used() > FULL_SHARE:
                self._make_room(PRUNED_SHARE)
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
            return int(self._pragma("page_count")) * int(self._pragma("page_size"))

    def _store(self, incidents: tuple[Incident, ...], notices: NoticeChanges) -> None:
        rows = [(it.id, it.owner, it.job_id, it.closed_at, encode(it)) for it in incidents]
        with self._transaction():
            self._connection.executemany(_WRITE, rows)
            keep_beside(self._connection, incidents)
            if notices:
                notice_rows.write_notices(self._connection, notices)

    def _drop(self, chosen: str, words: tuple[object, ...]) -> None:
        """Drops the incidents whose ids the statement `chosen` selects, and what is kept beside them."""
        drop_beside(self._connection, chosen, words)
        self._connection.execute(f"DELETE FROM incidents WHERE id IN ({chosen})", words)

    def notices(self, limit: int) -> tuple[Notice, ...]:
        """The newest that wait to be sent, the oldest of these first. Raises DatabaseError."""
        with told(self.path):
            return notice_rows.read_notices(self._connection, limit)

    def told(self) -> dict[int, Told]:
        """Reads what was told of the incidents that are open. Raises DatabaseError."""
        with told(self.path):
            return notice_rows.read_told(self._connection)

    def keep_advice(self, runs: Iterable[RunAdvice], now: float) -> None:
        """Stores what was advised of runs, in place of what was stored of them, and drops what is too old or too much.
        Raises DatabaseError, and then nothing is stored."""
        with told(self.path), self._transaction():
            most = min(advice_rows.MAX_RUNS, self._max_bytes // advice_rows.SHARE // advice_rows.MAX_RUN_BYTES)
            advice_rows.write(self._connection, runs, now - self._keep_seconds, most)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _prepare(self) -> None:
        """Makes the table in a new file; a file that is something else is left as it is."""
        run = self._connection.execute
        _refuse_programs(self._connection)
        if is_new := run("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            run("PRAGMA auto_vacuum = INCREMENTAL")
        elif int(self._pragma("user_version")) not in range(1, VERSION + 1) or (
            int(self._pragma("application_id")) != _APPLICATION
        ):
            raise sqlite3.DatabaseError(f"it is no database of incidents of version {VERSION}")
        found = run("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise sqlite3.DatabaseError(f"it is damaged: {found and found[0]}")
        run("PRAGMA journal_mode = WAL").fetchall()
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA journal_size_limit = {4 << 20}").fetchall()
        if is_new:
            self._change(_SCHEMA, 1)
        for version in range(int(self._pragma("user_version")), VERSION):
            self._change(_MIGRATIONS[version], version + 1)
        most = max(16, self._max_bytes // int(self._pragma("page_size")))
        run(f"PRAGMA max_page_count = {most}").fetchall()

    def _change(self, statements: str, version: int) -> None:
        with self._transaction():
            for statement in statements.split(";"):
                self._connection.execute(statement)
            if version == 3:
                fill_from_incidents(self._connection)
            self._connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._connection.execute(f"PRAGMA user_version = {version}")

    def keep_digests(self, kept: Iterable[KeptDigest], now: float) -> None:
        """Stores digests, in place of those of the same run, and drops what is too old or too much. Raises
        DatabaseError, and then nothing is stored."""
        with told(self.path), self._transaction():
            run = self._connection.execute
            run("DELETE FROM digests WHERE made_at < ?", (now - self._keep_seconds,))
            self._connection.executemany(_KEEP_DIGEST, [it.row() for it in kept])
            most = min(MAX_DIGESTS, self._max_bytes // DIGESTS_SHARE // MAX_DIGEST_BYTES)
            while (excess := run("SELECT count(*) FROM digests").fetchone()[0] - most) > 0:
                heaviest = "SELECT owner FROM digests GROUP BY owner ORDER BY count(*) DESC LIMIT 1"
                drop = (
                    "DELETE FROM digests WHERE rowid IN"
                    f" (SELECT rowid FROM digests WHERE owner = ({heaviest}) ORDER BY made_at LIMIT ?)"
                )
                run(drop, (max(1, excess // 2),))

    def keep_confirmations(self, confirmations: Iterable[Confirmation], now: float) -> None:
        """Stores measurements of suspects, and drops what is too old or too much. Raises DatabaseError, and then
        nothing is stored."""
        with told(self.path), self._transaction():
            run = self._connection.execute
            run("DELETE FROM confirmations WHERE at < ?", (now - self._keep_seconds,))
            rows = [(it.node, it.at, encode(it)) for it in confirmations]
            self._connection.executemany("INSERT OR REPLACE INTO confirmations VALUES (?, ?, ?)", rows)
            keep = "SELECT rowid FROM confirmations ORDER BY at DESC LIMIT ?"
            run(f"DELETE FROM confirmations WHERE rowid NOT IN ({keep})", (MAX_CONFIRMATIONS,))

    def _pragma(self, name: str) -> int | str:
        value: int | str = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def _used(self) -> float:
        """The share of max_bytes that is taken by rows."""
        pages = int(self._pragma("page_count")) - int(self._pragma("freelist_count"))
        return pages * int(self._pragma("page_size")) / self._max_bytes

    def _make_room(self, share: float) -> None:
        """Drops the oldest closed incidents of the user who has the most, until `share` of max_bytes is taken: who
        floods the file loses their own."""
        heaviest = "SELECT owner, count(*) FROM incidents WHERE closed_at IS NOT NULL GROUP BY owner ORDER BY 2 DESC"
        oldest = "SELECT id FROM incidents WHERE owner = ? AND closed_at IS NOT NULL ORDER BY id LIMIT ?"
        while self._used() > share:
            found = self._connection.execute(f"{heaviest} LIMIT 1").fetchone()
            if found is None:
                return
            with self._transaction():
                self._drop(oldest, (found[0], max(1, found[1] // 8)))

    def open_incidents(self, limit: int) -> tuple[Incident, ...]:
        """The newest that are open. Raises DatabaseError."""
        with told(self.path):
            return read_rows(self._connection, IncidentQuery(open_only=True, limit=limit)).incidents

    def closed_since(self, moment: float, limit: int) -> tuple[Incident, ...]:
        """The newest that were closed since then, oldest first. Raises DatabaseError."""
        with told(self.path):
            rows = read_rows(self._connection, IncidentQuery(since=moment, limit=limit)).incidents
        return tuple(it for it in reversed(rows) if it.closed_at is not None)

    def keep_nodes(self, rows: NodeRows, now: float) -> None:
        """Stores faults, names and runs, in place of what was stored of them, and drops what is too old or too much.
        Raises DatabaseError, and then nothing is stored."""
        with told(self.path), self._transaction():
            keep_node_rows(self._connection, rows, now, self._keep_seconds, self._max_bytes)

    def open_nodes(self, since: float) -> tuple[NodeRows, tuple[Fault, ...]]:
        """The open faults, the names and the runs that go on, and the faults that have ended since. Raises
        DatabaseError."""
        with told(self.path):
            return open_rows(self._connection, since)


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


def read_incidents(path: str, query: IncidentQuery) -> tuple[Rows, int]:
    """The incidents that a file holds, and how many of them are open. The file is only read, also while a collector
    writes it. Raises DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
        return read_rows(connection, query), _count_open(connection)


def read_advice(path: str, query: AdviceQuery, kind: type[advice_rows.Kept]) -> tuple[advice_rows.Kept, ...]:
    """Reads what was advised of runs, the newest first, with their digests or without; nothing in a file of a release
    that kept none. The file is only read. Raises DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'advice'").fetchone() is None:
            return ()
        return advice_rows.read(connection, query, kind)


def read_digest(path: str, asked: AskedDigest) -> Digest | None:
    """The newest digest that fits; None where there is none, and in a file of a release that kept none. Raises
    DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'digests'").fetchone() is None:
            return None
        where = "owner = ? AND run = ?"
        words: tuple[object, ...] = (asked.owner, asked.run)
        if asked.run == LAST:
            where += " AND script = ? AND world_size = ? AND NOT (job_id = ? AND started_at = ?)"
            words += (asked.script, asked.world_size, asked.job_id, asked.started_at)
        elif asked.run == FIRST:
            where += " AND job_id = ? AND started_at = ?"
            words += (asked.job_id, asked.started_at)
        found = connection.execute(f"SELECT document FROM digests WHERE {where} ORDER BY made_at DESC LIMIT 1", words)
        row = found.fetchone()
    try:
        return decode(row[0], Digest) if row else None
    except WireError:
        return None


def read_confirmations(path: str) -> tuple[Confirmation, ...]:
    """All measurements of suspects, the oldest first; none in a file of a release that kept none. Raises
    DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'confirmations'").fetchone() is None:
            return ()
        text = "SELECT document FROM (SELECT * FROM confirmations ORDER BY at DESC LIMIT ?) ORDER BY at"
        rows = connection.execute(text, (MAX_CONFIRMATIONS,)).fetchall()
    found = []
    for (document,) in rows:
        with contextlib.suppress(WireError):  # one row's damage costs that row
            found.append(decode(document, Confirmation))
    return tuple(found)


def read_machine(path: str, node: str, limit: int) -> MachineRows:
    """The faults and names of the machine that has this name. Raises DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
        return machine_rows(connection, node, limit) if has_node_tables(connection) else MachineRows()


def read_faults(path: str, since: float) -> tuple[Fault, ...]:
    """The faults of all machines that were open then or later. Raises DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
        return faults_since(connection, since) if has_node_tables(connection) else ()


def read_losses(path: str, since: float, owner: int | None, limit: int) -> tuple[tuple[Loss, ...], tuple[Run, ...]]:
    """The losses by incidents that lasted then or later, the newest `limit`, and the runs that were seen since. Raises
    DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
        if not has_node_tables(connection):
            rows = read_rows(connection, IncidentQuery(owner=owner, since=since, limit=limit)).incidents
            return tuple(map(Loss.of, rows)), ()
        return losses_since(connection, since, owner, limit), runs_since(connection, since, owner)


def read_rows(connection: sqlite3.Connection, query: IncidentQuery) -> Rows:
    conditions: dict[str, str | float | bytes | None] = {
        "job_id = ?": query.job_id,
        "owner = ?": query.owner,
        "(closed_at IS NULL OR closed_at >= ?)": query.since,
        "id < ?": query.before,
    }
    if query.node is not None and has_node_tables(connection):
        conditions["id IN (SELECT id FROM incident_nodes WHERE node = ?)"] = query.node
    elif query.node is not None:  # those that name it anywhere; matches() looks where
        conditions["instr(document, ?) > 0"] = encode(query.node)
    asked = {text: value for text, value in conditions.items() if value is not None}
    where = " AND ".join([*asked, *(["closed_at IS NULL"] if query.open_only else ["1"])])
    text = f"SELECT id, document FROM incidents WHERE {where} ORDER BY id DESC LIMIT ?"
    rows = connection.execute(text, (*asked.values(), query.limit)).fetchall()
    incidents = [found for _, document in rows if (found := _decoded(document)) is not None]
    last = rows[-1][0] if len(rows) == query.limit else None
    return Rows(tuple(incidents), last, len(rows) - len(incidents))


def _count_open(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM incidents WHERE closed_at IS NULL").fetchone()[0])


def _decoded(document: bytes) -> Incident | None:
    try:
        return decode(document, Incident)
    except WireError:  # one row's damage costs that row
        return None


def _connect_to_read(path: str) -> sqlite3.Connection:
    _check_is_file(path)
    place = f"file:{quote(os.path.abspath(path))}?mode=ro"
    for uri in (place, f"{place}&immutable=1"):  # the second: a copy in a folder that is only readable
        connection = sqlite3.connect(uri, uri=True, timeout=5.0)
        try:
            _refuse_programs(connection)
            connection.execute("SELECT count(*) FROM incidents WHERE id = 0").fetchone()
            return connection
        except sqlite3.Error as error:
            connection.close()
            if uri != place or "unable to open" not in str(error):
                raise
    raise AssertionError("one of the two returns or raises")


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
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
