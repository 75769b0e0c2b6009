"""The tables of incidents, faults, names, digests and confirmations, one schema for SQLite and PostgreSQL, and the
steps from one version of it to the next, there and back.

A row has the columns that it is looked up by, and a document. A step is a few statements of SQL and one number: the
whole is shorter than the environment that Alembic wants, and runs in the one transaction that also writes the number.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator, TypeEngine

APPLICATION: Final = 0x6C616767  # "lagg", in a file's header

SCHEMA: Final = "laggard"
"""The schema of PostgreSQL that has the tables."""


class DatabaseError(Exception):
    """The database cannot be used. The text is one line that names it and says what is wrong and what to do."""


class FullError(DatabaseError):
    """A file has reached incidents_max_bytes, or its disk is full."""


class Words(TypeDecorator[str]):
    """Text that may hold NUL, as a job's name may, and PostgreSQL's text not: it is escaped there."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))


_Whole: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_Seconds: Final[TypeEngine[float]] = sa.Double().with_variant(sa.REAL(), "sqlite")

TABLES: Final = sa.MetaData()


def _table(name: str, *parts: Any) -> sa.Table:
    return sa.Table(name, TABLES, *parts, sqlite_strict=True)


def _key(name: str, kind: Any = _Whole) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _have(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _writing() -> tuple[sa.Column[Any], sa.Column[Any]]:
    """Who wrote a row last, and when by the database's clock: what several collectors need to know."""
    return (
        sa.Column("writer", Words, nullable=False, server_default=""),
        sa.Column("written_at", _Seconds, nullable=False, server_default=sa.text("0")),
    )


INCIDENTS: Final = _table(
    "incidents",
    _key("id"),
    _have("owner", _Whole),
    _have("job_id", Words),
    sa.Column("closed_at", _Seconds),
    _have("document", sa.LargeBinary),
    *_writing(),
    sa.Index("of_job", "job_id", "id"),
    sa.Index("by_end", "closed_at"),
    sa.Index("incidents_by_writing", "written_at"),
)

INCIDENT_NODES: Final = _table("incident_nodes", _key("node", Words), _key("id"), sa.Index("nodes_of_incident", "id"))
"""The nodes that incidents are on, to look them up by."""

FAULTS: Final = _table(
    "faults",
    _key("id"),
    _have("machine", Words),
    _have("node", Words),
    sa.Column("closed_at", _Seconds),
    _have("document", sa.LargeBinary),
    *_writing(),
    sa.Index("faults_of_node", "node", "id"),
    sa.Index("faults_of_machine", "machine", "id"),
    sa.Index("faults_by_end", "closed_at"),
)

NAMES: Final = _table(
    "names",
    _key("node", Words),
    _key("machine", Words),
    _have("seen_at", _Seconds),
    _have("document", sa.LargeBinary),
    sa.Index("names_of_machine", "machine"),
)

DIGESTS: Final = _table(
    "digests",
    _key("owner"),
    _key("job_id", Words),
    _key("started_at", _Seconds),
    _key("run", Words),
    _have("script", Words),
    _have("world_size", _Whole),
    _have("made_at", _Seconds),
    _have("document", sa.LargeBinary),
    sa.Index("of_script", "owner", "script", "world_size", "made_at"),
)

CONFIRMATIONS: Final = _table(
    "confirmations", _key("node", Words), _key("at", _Seconds), _have("document", sa.LargeBinary)
)

OLDEST, VERSION = 5, 6
"""The versions of the tables that this laggard can bring to VERSION, which it uses; others are refused."""


class Step(NamedTuple):
    """The statements that bring the tables to a version from the one before, and back, by dialect."""

    there: dict[str, tuple[str, ...]]
    back: dict[str, tuple[str, ...]]


def _of_both(*statements: str) -> tuple[str, ...]:
    """The statements for each of the tables whose rows have a writer, as `{}`."""
    return tuple(it.format(table) for table in ("incidents", "faults") for it in statements)


_BY_WRITING: Final = "CREATE INDEX incidents_by_writing ON incidents (written_at)"
_OPEN_OF_JOB: Final = "CREATE INDEX open_of_job ON incidents (owner, job_id) WHERE closed_at IS NULL"
_NO_VERDICTS: Final = "DROP TABLE IF EXISTS evaluators, verdicts"  # facts about now, there again within a round

STEPS: Final = {
    6: Step(  # a file knows who wrote a row, as PostgreSQL's tables did, and moments are numbers in both
        {
            "sqlite": (
                *_of_both(
                    "ALTER TABLE {} ADD COLUMN writer TEXT NOT NULL DEFAULT ''",
                    "ALTER TABLE {} ADD COLUMN written_at REAL NOT NULL DEFAULT 0",
                ),
                _BY_WRITING,
            ),
            "postgresql": (
                *_of_both(
                    "ALTER TABLE {} ALTER written_at DROP DEFAULT",
                    "ALTER TABLE {} ALTER written_at TYPE DOUBLE PRECISION USING extract(epoch FROM written_at)",
                    "ALTER TABLE {} ALTER written_at SET DEFAULT 0",
                ),
                "DROP INDEX open_of_job",
                _NO_VERDICTS,
            ),
        },
        {
            "sqlite": (
                "DROP INDEX incidents_by_writing",
                *_of_both("ALTER TABLE {} DROP COLUMN writer", "ALTER TABLE {} DROP COLUMN written_at"),
            ),
            "postgresql": (
                *_of_both(
                    "ALTER TABLE {} ALTER written_at DROP DEFAULT",
                    "ALTER TABLE {} ALTER written_at TYPE TIMESTAMPTZ USING to_timestamp(written_at)",
                    "ALTER TABLE {} ALTER written_at SET DEFAULT now()",
                ),
                _OPEN_OF_JOB,
                _NO_VERDICTS,
            ),
        },
    )
}


def version_of(connection: sa.Connection) -> int:
    """The version of the tables; 0: there are none. What is another program's file has -1."""
    if connection.dialect.name == "sqlite":
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("application_id", "user_version")
        ]
        if found[0] == APPLICATION:
            return int(found[1])
        return -1 if connection.exec_driver_sql("SELECT 1 FROM sqlite_schema LIMIT 1").first() else 0
    if not sa.inspect(connection).has_table("version", SCHEMA):
        return 0
    return int(connection.exec_driver_sql("SELECT number FROM version").scalar_one())


def prepare(connection: sa.Connection, target: int = VERSION) -> None:
    """Makes the tables where there are none, or brings them to the version, within the transaction of whoever calls it.
    Raises DatabaseError where they are of a version that this laggard does not know."""
    version = version_of(connection)
    if version == 0:
        TABLES.create_all(connection)
    for known in (version or VERSION, target):
        if not OLDEST <= known <= VERSION:
            raise DatabaseError(wrong_version(known))
    name, began = connection.dialect.name, version
    while version and version != target:
        step = STEPS[version + 1].there if version < target else STEPS[version].back
        for statement in step[name]:
            connection.exec_driver_sql(statement)
        version += 1 if version < target else -1
    if began != target:
        _note_version(connection, target)


def _note_version(connection: sa.Connection, version: int) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
        connection.exec_driver_sql(f"PRAGMA user_version = {version}")
        return
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS version (number BIGINT NOT NULL)")
    connection.exec_driver_sql("DELETE FROM version")
    connection.execute(sa.text("INSERT INTO version VALUES (:number)"), {"number": version})


def wrong_version(version: int) -> str:
    """The words for tables that this laggard does not use, in a line that the place's name begins."""
    if version == 0:
        return "has no incidents of laggard: a collector makes the tables, by incidents_database"
    if version < 0:
        return "is no database of incidents: move it away, and a new one is begun, or name another place"
    if OLDEST <= version < VERSION:
        return f"is of version {version}: a collector of this laggard brings it to {VERSION} when it starts"
    what_to_do = "name another place, or read it with the laggard that made it"
    return f"is of version {version}, and this laggard knows {OLDEST} to {VERSION}: {what_to_do}"
