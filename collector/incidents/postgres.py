"""Connections to PostgreSQL, which may be slow, hang, or be behind a pooler. psycopg comes with `laggard[postgres]`."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, func, select

from laggard.collector.incidents.schema import SCHEMA, DatabaseError
from laggard.kit.address import refusal, without_login

if TYPE_CHECKING:
    import psycopg

STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 10, 9, 6
"""The longest time for a statement, for the wait until another collector has written, and for a transaction in which
nothing is asked. The last is the shortest: the database ends what a collector began that hangs, while others wait."""

ANSWER_SECONDS: Final = STATEMENT_SECONDS + 2
"""The longest wait for the server to do anything: it ends a statement before that. One that hangs, or that a proxy in
front of it no longer reaches, would else let its clients wait for ever."""

CONNECT_SECONDS: Final = 5

_BACKEND: Final = "laggard_backend"
"""The attribute of a connection: the process of the server that has its settings and locks."""

LOCK: Final = 0x6C61676761726400  # "laggard", and one byte for other locks
"""The lock that a collector takes for a transaction in which it writes."""


def engine_of(place: str, **options: Any) -> Engine:
    """`options`: how transactions are. Raises DatabaseError."""
    if why := refusal(place):
        raise DatabaseError(f"{without_login(place)} {why}")
    if importlib.util.find_spec("psycopg") is None:
        raise DatabaseError(f"{without_login(place)} needs psycopg: pip install 'laggard[postgres]'")
    connect = functools.partial(_connect, place)  # libpq reads the URL, with all its options
    engine = create_engine(
        "postgresql+psycopg://", creator=connect, poolclass=NullPool, execution_options=options, use_native_hstore=False
    )

    @event.listens_for(engine, "begin")
    def _expect_own(connection: Connection) -> None:
        if backend_of(connection) != getattr(connection.connection.driver_connection, _BACKEND):
            raise _lent(place)

    return engine


def _connect(place: str) -> psycopg.Connection[Any]:
    import psycopg

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
        said += [f"SET search_path = {SCHEMA}", "SET client_encoding = 'UTF8'", "SELECT pg_backend_pid()"]
        answers = connection.execute("; ".join(said))
        while answers.nextset():
            pass
        setattr(connection, _BACKEND, answers.fetchall()[0][0])
        connection.autocommit = False
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


def backend_of(connection: Connection) -> int:
    """The process of the server that answers on the connection."""
    return int(connection.scalar(select(func.pg_backend_pid())) or 0)


def refuse_lent(place: str, connection: Connection) -> None:
    """Raises DatabaseError where a pooler lends this connection's process of the server to others between transactions.
    A pooler that does not (PgBouncer's pool_mode session) has given its own number at the start, too, but no two of its
    clients ever have the same process."""
    driver: Any = connection.connection.driver_connection
    backend = getattr(driver, _BACKEND)
    if driver.info.backend_pid == backend:
        return  # the server itself
    with contextlib.closing(_connect(place)) as other:
        if getattr(other, _BACKEND) == backend:
            raise _lent(place)


def _lent(place: str) -> DatabaseError:
    return DatabaseError(
        f"{without_login(place)} is reached through a pooler that lends a connection for a transaction, and a "
        "collector holds a lock as long as it is connected: set pool_mode to session in PgBouncer, or name PostgreSQL "
        "itself"
    )


def make_schema(place: str, connection: Connection) -> None:
    """Makes the schema that has the tables, where there is none. Raises DatabaseError."""
    if (encoding := connection.exec_driver_sql("SHOW server_encoding").scalar_one()) != "UTF8":
        text = f"{without_login(place)} has the encoding {encoding}: make the database with ENCODING 'UTF8'"
        raise DatabaseError(text)
    if not connection.exec_driver_sql(f"SELECT 1 FROM pg_namespace WHERE nspname = '{SCHEMA}'").first():
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")


def own_name(place: str, connection: Connection, wanted: str) -> str:
    """The writer's name, held as long as the connection is there; another one where it is held: by a collector that was
    given the same name, or one that is gone and whose connection the server still has. Raises DatabaseError."""
    for number in range(64):
        name = wanted if number == 0 else f"{wanted}#{number}"
        if connection.scalar(select(func.pg_try_advisory_lock(func.hashtextextended(f"laggard writer {name}", 0)))):
            return name
    raise DatabaseError(f"{without_login(place)} has 64 collectors of the name {wanted} already")


def what_to_do(error: object) -> str:
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
