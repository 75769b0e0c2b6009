"""PostgreSQL in place of a file, for collectors that share what they know. psycopg comes with `laggard[postgres]`.

Who writes takes a lock of the database for the length of a transaction: collectors write one after the other, so what
is looked for before it is stored cannot come in between. Text columns have no NUL in PostgreSQL, and a job's name may:
strings are escaped on their way in, and back on their way out.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from laggard.collector.incidents.tables import TABLES, VERSION, DatabaseError
from laggard.kit.address import refusal, without_login
from laggard.kit.words import printable_line

if TYPE_CHECKING:
    import psycopg

SCHEMA: Final = "laggard"
"""The schema that has the tables."""

STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 10, 9, 6
"""The longest time for a statement, for the wait until another collector has written, and for a transaction in which
nothing is asked. The last is the shortest: the database ends what a collector began that hangs, while others wait."""

ANSWER_SECONDS: Final = STATEMENT_SECONDS + 2
"""The longest wait for the server to do anything: it ends a statement before that. One that hangs, or that a proxy in
front of it no longer reaches, would else let its clients wait for ever."""

CONNECT_SECONDS: Final = 5

MAX_READERS: Final = 4
"""The most connections of one process that read at a time."""

MEASURE_SECONDS: Final = 30.0
"""The longest time for which the size of the rows is not measured anew."""

_LOCK: Final = 0x6C61676761726400  # "laggard", and one byte for other locks
_ROW_BYTES: Final = 200
"""The bytes that a row takes beside its document: header, other columns, entries in indexes. laggard's estimate."""

_DOCUMENTS: Final = ("incidents", "faults", "names", "digests", "confirmations")

_WORDS: Final = (
    (") STRICT, WITHOUT ROWID;", ");"),
    (") STRICT;", ");"),
    (" INTEGER", " BIGINT"),
    (" REAL", " DOUBLE PRECISION"),
    (" BLOB", " BYTEA"),
)
"""The words of SQLite, and those of PostgreSQL for the same."""

_SHARED: Final = """
ALTER TABLE incidents ADD COLUMN writer TEXT NOT NULL DEFAULT '';
ALTER TABLE incidents ADD COLUMN written_at TIMESTAMPTZ NOT NULL DEFAULT now();
ALTER TABLE faults ADD COLUMN writer TEXT NOT NULL DEFAULT '';
ALTER TABLE faults ADD COLUMN written_at TIMESTAMPTZ NOT NULL DEFAULT now();
CREATE INDEX incidents_by_writing ON incidents (written_at);
CREATE INDEX open_of_job ON incidents (owner, job_id) WHERE closed_at IS NULL;
CREATE TABLE version (number BIGINT NOT NULL)
"""
"""The columns and tables that several collectors need beside those of a file: who wrote a row, and when by the
database's clock."""

_readers = threading.BoundedSemaphore(MAX_READERS)


class PostgresReader:
    """A connection."""

    def __init__(self, place: str, connection: psycopg.Connection[Any]) -> None:
        self.place, self.connection = without_login(place), connection
        self._backend = _backend(connection)

    def run(self, text: str, words: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._executed(text, words)
        return [tuple(map(_out, row)) for row in cursor.fetchall()] if cursor.description else []

    def _executed(self, text: str, words: Sequence[Any]) -> psycopg.Cursor[Any]:
        return self.connection.execute(text.replace("?", "%s"), [_in(it) for it in words] or None)

    def many(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(text.replace("?", "%s"), [[_in(it) for it in row] for row in rows])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All readings of one moment."""
        with self.connection.transaction():
            self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._expect_own(_backend(self.connection))
            yield

    def _expect_own(self, backend: int) -> None:
        """Raises DatabaseError where a pooler has given this transaction to another process of the server than the one
        that has this connection's settings and locks."""
        if backend != self._backend:
            raise _shared(self.place)

    def told(self) -> contextlib.AbstractContextManager[None]:
        return told(self.place)

    def version(self) -> int:
        """The version of its tables; 0: it has none."""
        text = "SELECT 1 FROM pg_tables WHERE schemaname = ? AND tablename = 'version'"
        if not self.run(text, (SCHEMA,)):
            return 0
        return int(self.run("SELECT number FROM version")[0][0])


class PostgresStore(PostgresReader):
    """The connection of a collector, which writes. `writer`: the name by which it knows its own rows again, which no
    other collector has at the same time."""

    def __init__(self, place: str, connection: psycopg.Connection[Any], max_bytes: int, writer: str) -> None:
        super().__init__(place, connection)
        self._max_bytes = max_bytes
        self._rows_bytes, self._put_bytes, self._measured_at = 0, 0, float("-inf")
        self._prepare()
        self.writer = self._own_name(writer)

    @classmethod
    def open(cls, place: str, max_bytes: int, writer: str) -> PostgresStore:
        """Raises DatabaseError."""
        with told(place):
            connection = _connect(place)
            try:
                _refuse_shared(place, connection)
                return cls(place, connection, max_bytes, writer)
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        self.connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Other collectors wait meanwhile. Raises DatabaseError where one of another version has changed the tables."""
        with self._alone():
            if (version := self.version()) != VERSION:
                raise _of_version(self.place, version)
            yield

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self.connection.transaction():
            ((_, backend),) = self.run("SELECT pg_advisory_xact_lock(?), pg_backend_pid()", (_LOCK,))
            self._expect_own(backend)
            yield

    def run(self, text: str, words: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._executed(text, words)
        if text.startswith("DELETE") and cursor.rowcount > 0:
            self._measured_at = float("-inf")
        return [tuple(map(_out, row)) for row in cursor.fetchall()] if cursor.description else []

    def many(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        rows = list(rows)
        self._put_bytes += sum(_ROW_BYTES + sum(len(it) for it in row if isinstance(it, bytes)) for row in rows)
        super().many(text, rows)

    def used(self) -> float:
        fresh = time.monotonic() - self._measured_at < MEASURE_SECONDS
        if not fresh or self._put_bytes > self._max_bytes // 16:
            sizes = (f"(SELECT {_ROW_BYTES} * count(*) + coalesce(sum(pg_column_size(document)), 0) FROM {table})"
                     for table in _DOCUMENTS)  # fmt: skip
            nodes = f"(SELECT {_ROW_BYTES} * count(*) FROM incident_nodes)"
            self._rows_bytes = int(self.run(f"SELECT {' + '.join((*sizes, nodes))}")[0][0])
            self._put_bytes, self._measured_at = 0, time.monotonic()
        return (self._rows_bytes + self._put_bytes) / self._max_bytes

    def bytes(self) -> int:
        text = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ? AND c.relkind = 'r'"
        )
        return int(self.run(text, (SCHEMA,))[0][0])

    def give_back(self) -> None:
        """Autovacuum does: what dropped rows took is used again."""

    def is_full(self, error: Exception) -> bool:
        return False  # where the server's disk is full, dropping rows takes more of it

    def _prepare(self) -> None:
        """Makes the tables where there are none, in one transaction, so that whoever is killed leaves none. Raises
        DatabaseError where they are of another version."""
        if (encoding := self.run("SHOW server_encoding")[0][0]) != "UTF8":
            raise DatabaseError(f"{self.place} has the encoding {encoding}: make the database with ENCODING 'UTF8'")
        if self.version() == VERSION:
            return
        with self._alone():
            version = self.version()
            if version == VERSION:  # another collector has made them meanwhile
                return
            if version != 0:
                raise _of_version(self.place, version)
            if not self.run("SELECT 1 FROM pg_namespace WHERE nspname = ?", (SCHEMA,)):
                self.run(f"CREATE SCHEMA {SCHEMA}")
            self._execute(_in_postgres_words(TABLES))
            self._execute(_SHARED)
            self.run("INSERT INTO version VALUES (?)", (VERSION,))

    def _execute(self, statements: str) -> None:
        for statement in statements.split(";"):
            if statement.strip():
                self.run(statement)

    def _own_name(self, wanted: str) -> str:
        """The name, held as long as the connection is there; another one where it is held: by a collector that was
        given the same name, or one that is gone and whose connection the server still has."""
        for number in range(64):
            name = wanted if number == 0 else f"{wanted}#{number}"
            if self.run("SELECT pg_try_advisory_lock(hashtextextended(?, 0))", (f"laggard writer {name}",))[0][0]:
                return name
        raise DatabaseError(f"{self.place} has 64 collectors of the name {wanted} already")


@contextlib.contextmanager
def reading(place: str) -> Iterator[PostgresReader]:
    """A connection that only reads. Raises DatabaseError."""
    with told(place):
        if not _readers.acquire(timeout=CONNECT_SECONDS):
            raise DatabaseError(f"{without_login(place)}: {MAX_READERS} answers are read already, and take over 5 s")
        try:
            with contextlib.closing(_connect(place)) as connection:
                reader = PostgresReader(place, connection)
                if (version := reader.version()) != VERSION:
                    raise _of_version(reader.place, version)
                with reader.transaction():
                    yield reader
        finally:
            _readers.release()


def _connect(place: str) -> psycopg.Connection[Any]:
    if why := refusal(place):
        raise DatabaseError(f"{without_login(place)} {why}")
    try:
        import psycopg
    except ImportError:
        text = f"{without_login(place)} needs psycopg: pip install 'laggard[postgres]'"
        raise DatabaseError(text) from None
    given = psycopg.conninfo.conninfo_to_dict(place)
    defaults = {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "laggard",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 1000 * STATEMENT_SECONDS,
    }
    more: dict[str, Any] = {name: value for name, value in defaults.items() if name not in given}
    own = str(given.get("options") or "")
    kind = psycopg.Connection if "statement_timeout" in own else _impatient()
    connection: psycopg.Connection[Any] = kind.connect(place, autocommit=True, prepare_threshold=None, **more)
    try:
        limits = {
            "statement_timeout": f"{STATEMENT_SECONDS}s",
            "lock_timeout": f"{LOCK_SECONDS}s",
            "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
            # So that the server, too, notices a collector that is gone without a word: it holds a lock by its name.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        said = [f"SET {name} = '{value}'" for name, value in limits.items() if name not in own]
        connection.execute("; ".join([*said, f"SET search_path = {SCHEMA}", "SET client_encoding = 'UTF8'"]))
    except BaseException:
        connection.close()
        raise
    return connection


@functools.cache
def _impatient() -> type[psycopg.Connection[Any]]:
    """Returns psycopg's connection, but one that waits ANSWER_SECONDS for an answer at most."""
    import psycopg

    class Impatient(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, Any], *words: Any, **named: Any) -> Any:
            return super().wait(self._in_time(gen, time.monotonic() + ANSWER_SECONDS), *words, **named)

        def _in_time(self, gen: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
            """What `gen` is: psycopg sends it what the socket is ready for, and some ten times a second nothing."""
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if not ready and time.monotonic() > deadline:
                        self.close()  # so that nobody waits for it once more
                        raise psycopg.OperationalError(f"the server has not answered for {ANSWER_SECONDS} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                return end.value

    return Impatient


def _refuse_shared(place: str, connection: psycopg.Connection[Any]) -> None:
    """Raises DatabaseError where a pooler lends this connection's process of the server to others between transactions.
    A pooler that does not (PgBouncer's pool_mode session) has given its own number at the start, too, but no two of its
    clients ever have the same process."""
    backend = _backend(connection)
    if connection.info.backend_pid == backend:
        return  # the server itself
    with contextlib.closing(_connect(place)) as other:
        if _backend(other) == backend:
            raise _shared(without_login(place))


def _backend(connection: psycopg.Connection[Any]) -> int:
    """The process of the server that answers on the connection."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def _shared(place: str) -> DatabaseError:
    return DatabaseError(
        f"{place} is reached through a pooler that lends a connection for a transaction, and a collector holds a lock "
        "as long as it is connected: set pool_mode to session in PgBouncer, or name PostgreSQL itself"
    )


def _in_postgres_words(statements: str) -> str:
    for said, meant in _WORDS:
        statements = statements.replace(said, meant)
    return statements


def _of_version(place: str, version: int) -> DatabaseError:
    if version == 0:
        return DatabaseError(
            f"{place} has no incidents of laggard: a collector makes the tables, by incidents_database"
        )
    what_to_do = "name another database, or read it with the laggard that made it"
    return DatabaseError(f"{place} is of version {version}, and this laggard knows {VERSION}: {what_to_do}")


def _in(value: Any) -> Any:
    if isinstance(value, str) and ("\0" in value or "\\" in value):
        return value.replace("\\", "\\\\").replace("\0", "\\0")
    return value


def _out(value: Any) -> Any:
    if isinstance(value, str) and "\\" in value:
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))
    return value


@contextlib.contextmanager
def told(place: str) -> Iterator[None]:
    """Turns what PostgreSQL and libpq report into a DatabaseError."""
    try:
        yield
    except DatabaseError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("psycopg"):
            raise
        text = printable_line(str(error), 300)
        what_to_do = _what_to_do(error)
        line = f"{without_login(place)} cannot be used: {text}{'; ' if what_to_do else ''}{what_to_do}"
        raise DatabaseError(printable_line(line)) from None


def _what_to_do(error: Exception) -> str:
    """Returns what mends it, where that is known, by SQLSTATE: https://www.postgresql.org/docs/15/errcodes-appendix.html"""
    state = getattr(error, "sqlstate", None) or ""
    return {
        "53100": "free some of the server's disk",
        "57014": f"a statement took over {STATEMENT_SECONDS} s: the server is busy, or its disk slow",
        "55P03": f"another collector wrote for over {LOCK_SECONDS} s",
        "25006": "it is a standby, or set to be read only: name the primary",
        "42501": f"let the role own the schema {SCHEMA}, or create it",
        "28P01": "see the password in the file that passfile or PGPASSFILE names",
    }.get(state, "")
