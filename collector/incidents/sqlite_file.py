"""An SQLite file of bounded size. One collector writes it, any number of readers read it."""

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

from laggard.collector.incidents.engine import DatabaseError
from laggard.collector.incidents.schema import TABLES, VERSION
from laggard.text.words import printable_line

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
        return told(self.path)


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
        with told(path):
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
def reading(path: str) -> Iterator[SqliteReader]:
    """The file is only read, also while a collector writes it. Raises DatabaseError."""
    with told(path), contextlib.closing(_connect_to_read(path)) as connection:
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
