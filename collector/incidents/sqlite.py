"""A file of SQLite: any number of readers, and one collector that writes it, which a lock beside the file keeps so."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
from functools import partial
from typing import Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, create_engine, event

_MODE: Final = 0o600
"""The mode of new files: they hold all users' jobs. SQLite gives those beside the database the database's own."""

_WAIT_SECONDS: Final = 5.0
"""The longest wait for a reader or a backup that holds the file."""


def engine_to_read(path: str) -> Engine:
    return _engine(partial(_to_read, path), "BEGIN")


def engine_to_write(path: str, max_bytes: int) -> Engine:
    return _engine(partial(_to_write, path, max_bytes), "BEGIN IMMEDIATE")


def _engine(connect: partial[sqlite3.Connection], begin: str) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:  # the driver by itself would begin with the first change
        connection.exec_driver_sql(begin)

    return engine


def lock(path: str) -> int:
    """A descriptor that is to be held as long as the file is written; makes the file where there is none. Raises
    OSError."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileExistsError):  # the mode of one that is there stays
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _connect(path: str, options: str = "") -> sqlite3.Connection:
    """Raises OSError and sqlite3.Error."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe is waited for without end
        raise OSError(errno.EINVAL, "it is no regular file", path)
    place = f"file:{quote(os.path.abspath(path))}?{options}"
    found = sqlite3.connect(place, uri=True, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _refuse_programs(found)
    except BaseException:
        found.close()
        raise
    return found


def _to_read(path: str) -> sqlite3.Connection:
    try:
        return _connect(path, "mode=ro")
    except sqlite3.Error as error:
        if "unable to open" not in str(error):
            raise
        return _connect(path, "mode=ro&immutable=1")  # a copy in a folder that is only readable


def _to_write(path: str, max_bytes: int) -> sqlite3.Connection:
    connection = _connect(path, "mode=rw")
    run = connection.execute
    try:
        if run("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            run("PRAGMA auto_vacuum = INCREMENTAL")
        if (found := run("PRAGMA quick_check(1)").fetchone()) != ("ok",):
            raise sqlite3.DatabaseError(f"it is damaged: {found and found[0]}")
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA journal_size_limit = {4 << 20}").fetchall()
        size = run("PRAGMA page_size").fetchone()[0]
        run(f"PRAGMA max_page_count = {max(16, max_bytes // size)}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


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
