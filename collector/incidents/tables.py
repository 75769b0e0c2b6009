"""The tables of incidents, faults, digests and confirmations, all bounded. Their statements are words that SQLite and
PostgreSQL both take.

Statements have `?` for each value, no other `?` and no `%`. A place is a file's path, or a URL that begins with
`postgresql://`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from laggard.collector.incidents.incident import (
    FIRST,
    LAST,
    AskedDigest,
    Fault,
    Incident,
    IncidentQuery,
    KeptDigest,
    NodeName,
    incident_of,
)
from laggard.wire import WireError, decode, encode
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation


class DatabaseError(Exception):
    """The database cannot be used. The text is one line that names it and says what is wrong and what to do."""


class Engine(Protocol):
    """One connection, used by one thread at a time."""

    def run(self, text: str, words: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns all rows of the answer."""

    def many(self, text: str, rows: Iterable[Sequence[object]]) -> None:
        """The statement once for each row."""

    def transaction(self) -> AbstractContextManager[None]:
        """All of it or nothing. Where several collectors write, one after the other."""

    def told(self) -> AbstractContextManager[None]:
        """Turns what the database reports into a DatabaseError."""


class Store(Engine, Protocol):
    """The connection of a collector, which writes."""

    def used(self) -> float:
        """The share of the largest size that rows take."""

    def bytes(self) -> int:
        """The size of the database."""

    def give_back(self) -> None:
        """Gives what dropped rows took back to the disk, where that is to be asked for."""

    def is_full(self, error: Exception) -> bool:
        """Whether it was refused for the largest size, so that dropping rows helps."""

    def close(self) -> None: ...


def put(table: str, columns: Sequence[str], key: int) -> str:
    """The statement that stores a row in place of the one with the same key, which are the first `key` columns."""
    keys, others = columns[:key], columns[key:]
    values = ", ".join("?" * len(columns))
    changed = ", ".join(f"{name} = excluded.{name}" for name in others)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed}"
    )


def drop_oldest_of_heaviest(engine: Engine, table: str, key: str, age: str, most: int) -> None:
    """Drops rows of the user who has the most, those with the smallest `age` first, until `most` are left. `key`: the
    columns of the primary key."""
    heaviest = f"SELECT owner FROM {table} GROUP BY owner ORDER BY count(*) DESC LIMIT 1"
    oldest = f"SELECT {key} FROM {table} WHERE owner = ({heaviest}) ORDER BY {age} LIMIT ?"
    while (excess := count(engine, table) - most) > 0:
        engine.run(f"DELETE FROM {table} WHERE ({key}) IN ({oldest})", (max(1, excess // 2),))


def count(engine: Engine, what: str) -> int:
    """The rows of a table, with a condition or without."""
    return int(engine.run(f"SELECT count(*) FROM {what}")[0][0])


# Rows that hold a document each. One row's damage costs that row.

T = TypeVar("T")


def decoded(documents: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    """Those that can be read."""
    for document in documents:
        try:
            yield decode(document, kind)
        except WireError:
            continue


def documents(rows: Iterable[tuple[bytes]], kind: type[T]) -> tuple[T, ...]:
    return tuple(decoded((row[0] for row in rows), kind))


INCIDENT_TABLES: Final = """
CREATE TABLE incidents (
    id INTEGER PRIMARY KEY,
    owner INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    closed_at REAL,
    document BLOB NOT NULL
) STRICT;
CREATE INDEX of_job ON incidents (job_id, id);
CREATE INDEX by_end ON incidents (closed_at);
CREATE TABLE incident_nodes (
    node TEXT NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (node, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX nodes_of_incident ON incident_nodes (id);
"""
"""`incident_nodes`: the nodes that incidents are on, to look them up by."""

_PUT_INCIDENT: Final = put("incidents", ("id", "owner", "job_id", "closed_at", "document"), 1)


class Rows(NamedTuple):
    """Incidents, the newest first. `last_id` is the smallest id that was read, None where all were; `damaged` counts
    rows that are no incidents."""

    incidents: tuple[Incident, ...]
    last_id: int | None = None
    damaged: int = 0


def store_incident_rows(engine: Engine, incidents: Iterable[Incident]) -> None:
    """Stores incidents, in place of what was stored of them, within the transaction of whoever calls it."""
    rows = tuple(incidents)
    engine.many(_PUT_INCIDENT, [(it.id, it.owner, it.job_id, it.closed_at, encode(it)) for it in rows])
    engine.many("DELETE FROM incident_nodes WHERE id = ?", [(it.id,) for it in rows])
    nodes = [(node, it.id) for it in rows for node in it.culprit.machines]
    engine.many("INSERT INTO incident_nodes VALUES (?, ?) ON CONFLICT DO NOTHING", nodes)


def drop_older_incidents(engine: Engine, moment: float) -> None:
    """Drops what was closed before that."""
    _drop_incidents(engine, "SELECT id FROM incidents WHERE closed_at < ?", (moment,))


def drop_incidents_of_heaviest(engine: Engine) -> bool:
    """Drops the oldest closed incidents of the user who has the most: who floods the file loses their own. Returns
    whether there was one."""
    heaviest = "SELECT owner, count(*) FROM incidents WHERE closed_at IS NOT NULL GROUP BY owner ORDER BY 2 DESC"
    oldest = "SELECT id FROM incidents WHERE owner = ? AND closed_at IS NOT NULL ORDER BY id LIMIT ?"
    found = engine.run(f"{heaviest} LIMIT 1")
    if not found:
        return False
    owner, number = found[0]
    with engine.transaction():
        _drop_incidents(engine, oldest, (owner, max(1, number // 8)))
    return True


def _drop_incidents(engine: Engine, chosen: str, words: tuple[object, ...]) -> None:
    """Drops the incidents whose ids the statement `chosen` selects, and the rows of their nodes."""
    engine.run(f"DELETE FROM incident_nodes WHERE id IN ({chosen})", words)
    engine.run(f"DELETE FROM incidents WHERE id IN ({chosen})", words)


def read_incident_rows(engine: Engine, query: IncidentQuery) -> Rows:
    conditions: dict[str, str | float | None] = {
        "job_id = ?": query.job_id,
        "owner = ?": query.owner,
        "(closed_at IS NULL OR closed_at >= ?)": query.since,
        "id < ?": query.before,
        "id IN (SELECT id FROM incident_nodes WHERE node = ?)": query.node,
    }
    asked = {text: value for text, value in conditions.items() if value is not None}
    where = " AND ".join([*asked, *(["closed_at IS NULL"] if query.open_only else ["TRUE"])])
    text = f"SELECT id, document FROM incidents WHERE {where} ORDER BY id DESC LIMIT ?"
    rows = engine.run(text, (*asked.values(), query.limit))
    incidents = tuple(decoded((document for _, document in rows), Incident))
    last = rows[-1][0] if len(rows) == query.limit else None
    return Rows(incidents, last, len(rows) - len(incidents))


def count_open_incidents(engine: Engine) -> int:
    return count(engine, "incidents WHERE closed_at IS NULL")


FAULT_TABLES: Final = """
CREATE TABLE faults (
    id INTEGER PRIMARY KEY,
    machine TEXT NOT NULL,
    node TEXT NOT NULL,
    closed_at REAL,
    document BLOB NOT NULL
) STRICT;
CREATE INDEX faults_of_node ON faults (node, id);
CREATE INDEX faults_of_machine ON faults (machine, id);
CREATE INDEX faults_by_end ON faults (closed_at);
CREATE TABLE names (
    node TEXT NOT NULL,
    machine TEXT NOT NULL,
    seen_at REAL NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (node, machine)
) STRICT;
CREATE INDEX names_of_machine ON names (machine);
"""

MAX_FAULTS: Final = 16_384
"""The most faults that are over in one answer, and twice as many that are open."""

MAX_NAMES: Final = 65_536
"""The most names that a collector goes on with."""

_PUT_FAULT: Final = put("faults", ("id", "machine", "node", "closed_at", "document"), 1)
_PUT_NAME: Final = put("names", ("node", "machine", "seen_at", "document"), 2)


class MachineRows(NamedTuple):
    """The faults of one machine, the newest first, and the names that it had. Until `others_until` (Unix seconds; 0:
    never) another machine had its present name."""

    faults: tuple[Fault, ...] = ()
    names: tuple[NodeName, ...] = ()
    others_until: float = 0.0


def store_fault_rows(engine: Engine, faults: Iterable[Fault]) -> None:
    """Stores faults, in place of what was stored of them."""
    engine.many(_PUT_FAULT, [(it.id, it.machine, it.node, it.closed_at, encode(it)) for it in faults])


def store_names(engine: Engine, names: Iterable[NodeName]) -> None:
    """Stores names, in place of what was stored of them."""
    engine.many(_PUT_NAME, [name_row(it) for it in names])


def store_later_names(engine: Engine, names: Iterable[NodeName]) -> None:
    """Stores names; of one that two saw the later sight holds."""
    engine.many(f"{_PUT_NAME} WHERE excluded.seen_at >= names.seen_at", [name_row(it) for it in names])


def name_row(it: NodeName) -> tuple[str, str, float, bytes]:
    return it.node, it.machine, it.seen_at, encode(it)


def read_open_faults(engine: Engine) -> tuple[tuple[Fault, ...], tuple[NodeName, ...]]:
    """The open faults, and the names."""
    text = "SELECT document FROM faults WHERE closed_at IS NULL ORDER BY id DESC LIMIT ?"
    opened = documents(engine.run(text, (2 * MAX_FAULTS,)), Fault)
    names = engine.run("SELECT document FROM names ORDER BY seen_at DESC LIMIT ?", (MAX_NAMES,))
    return opened, documents(names, NodeName)


def read_ended_faults(engine: Engine, since: float) -> tuple[Fault, ...]:
    """Those that ended then or later, the oldest first."""
    text = "SELECT document FROM faults WHERE closed_at >= ? ORDER BY id DESC LIMIT ?"
    return documents(engine.run(text, (since, MAX_FAULTS)), Fault)[::-1]


def read_machine_rows(engine: Engine, node: str, limit: int) -> MachineRows:
    """The faults of the machine that has the name now, under whatever name it had them, and its names."""
    run = engine.run
    found = run("SELECT document FROM names WHERE node = ? ORDER BY seen_at DESC LIMIT 1", (node,))
    (named,) = documents(found, NodeName) or (None,)
    if named is None or not named.machine:
        faults = run("SELECT document FROM faults WHERE node = ? ORDER BY id DESC LIMIT ?", (node, limit))
        return MachineRows(documents(faults, Fault), (named,) if named else ())
    of_machine = "machine = ? OR (machine = '' AND node = ?)"
    words = (named.machine, node, limit)
    faults = run(f"SELECT document FROM faults WHERE {of_machine} ORDER BY id DESC LIMIT ?", words)
    names = run("SELECT document FROM names WHERE machine = ? ORDER BY seen_at DESC LIMIT 64", (named.machine,))
    others = run("SELECT max(seen_at) FROM names WHERE node = ? AND machine != ? AND machine != ''", words[1::-1])
    return MachineRows(documents(faults, Fault), documents(names, NodeName), others[0][0] or 0.0)


def read_faults_since(engine: Engine, since: float) -> tuple[Fault, ...]:
    """The faults that were open then or later, of all machines."""
    text = "SELECT document FROM faults WHERE closed_at IS NULL OR closed_at >= ? ORDER BY id DESC LIMIT ?"
    return documents(engine.run(text, (since, MAX_FAULTS)), Fault)


# The rows that a round changes beside the incidents: nodes' faults and names. So many are kept.

MAX_FAULT_ROWS: Final = 16_384
"""The most faults that are over and are kept; beyond them the oldest are dropped."""

MAX_FAULT_ROW_BYTES: Final = 1 << 10
"""The size of such a row; the table may take an eighth of the file."""


class NodeRows(NamedTuple):
    """The rows that a round changed beside the incidents."""

    faults: tuple[Fault, ...] = ()
    names: tuple[NodeName, ...] = ()


def bound_node_rows(engine: Engine, since: float, max_bytes: int) -> None:
    """Drops faults that ended before `since` and names that were last seen before it, and of the faults that are over
    the oldest beyond those that may be kept."""
    engine.run("DELETE FROM faults WHERE closed_at < ?", (since,))
    engine.run("DELETE FROM names WHERE seen_at < ?", (since,))
    most = min(MAX_FAULT_ROWS, max_bytes // 8 // MAX_FAULT_ROW_BYTES)
    if (excess := count(engine, "faults WHERE closed_at IS NOT NULL") - most) > 0:
        over = "SELECT id FROM faults WHERE closed_at IS NOT NULL ORDER BY id LIMIT ?"
        engine.run(f"DELETE FROM faults WHERE id IN ({over})", (excess,))


DIGEST_TABLES: Final = """
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
"""

MAX_DIGESTS: Final = 1024
"""The most digests of runs; beyond them the oldest of the user who has the most are dropped."""

DIGEST_SHARE, MAX_DIGEST_BYTES = 4, 16 << 10
"""Digests of this size, of which the largest jobs' are, may take a quarter of max_bytes."""

_DIGEST_COLUMNS: Final = ("owner", "job_id", "started_at", "run", "script", "world_size", "made_at", "document")
_PUT_DIGEST: Final = put("digests", _DIGEST_COLUMNS, 4)


def keep_digest_rows(engine: Engine, kept: Iterable[KeptDigest], since: float, max_bytes: int) -> None:
    """Stores digests, in place of those of the same run, within the transaction of whoever calls it, and drops what is
    too old or too much. `since`: older ones are dropped."""
    engine.run("DELETE FROM digests WHERE made_at < ?", (since,))
    engine.many(_PUT_DIGEST, [it.row() for it in kept])
    most = min(MAX_DIGESTS, max_bytes // DIGEST_SHARE // MAX_DIGEST_BYTES)
    drop_oldest_of_heaviest(engine, "digests", "owner, job_id, started_at, run", "made_at", most)


def put_later_digest(engine: Engine, kept: KeptDigest) -> None:
    """Stores a digest where there is none that was made later; of what a run was like when an incident began the first
    one stays."""
    if not has_first_digest(engine, kept):
        engine.many(f"{_PUT_DIGEST} WHERE excluded.made_at >= digests.made_at", [kept.row()])


def has_first_digest(engine: Engine, kept: KeptDigest) -> bool:
    """Whether it is of a run as it was when an incident began, and there is one of that already."""
    if incident_of(kept.run) is None:
        return False
    words = (kept.owner, kept.job_id, kept.digest.started_at or 0.0, kept.run)
    text = "SELECT 1 FROM digests WHERE owner = ? AND job_id = ? AND started_at = ? AND run = ?"
    return bool(engine.run(text, words))


def read_digest_row(engine: Engine, asked: AskedDigest) -> Digest | None:
    """The newest digest that fits; None where there is none."""
    where = "owner = ? AND run = ?"
    words: tuple[object, ...] = (asked.owner, asked.run)
    if asked.run == LAST:
        where += " AND script = ? AND world_size = ? AND NOT (job_id = ? AND started_at = ?)"
        words += (asked.script, asked.world_size, asked.job_id, asked.started_at)
    elif asked.run == FIRST:
        where += " AND job_id = ? AND started_at = ?"
        words += (asked.job_id, asked.started_at)
    rows = engine.run(f"SELECT document FROM digests WHERE {where} ORDER BY made_at DESC LIMIT 1", words)
    found = documents(rows, Digest)
    return found[0] if found else None


CONFIRMATION_TABLES: Final = """
CREATE TABLE confirmations (
    node TEXT NOT NULL,
    at REAL NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (node, at)
) STRICT;
"""

MAX_CONFIRMATIONS: Final = 1024
"""The most measurements of suspects; beyond them the oldest are dropped."""

_PUT_CONFIRMATION: Final = put("confirmations", ("node", "at", "document"), 2)


def keep_confirmation_rows(engine: Engine, confirmations: Iterable[Confirmation], since: float) -> None:
    """Stores measurements within the transaction of whoever calls it, and drops what is too old or too much. `since`:
    older ones are dropped."""
    engine.run("DELETE FROM confirmations WHERE at < ?", (since,))
    put_confirmation_rows(engine, confirmations)
    newest = "SELECT node, at FROM confirmations ORDER BY at DESC LIMIT ?"
    engine.run(f"DELETE FROM confirmations WHERE (node, at) NOT IN ({newest})", (MAX_CONFIRMATIONS,))


def put_confirmation_rows(engine: Engine, confirmations: Iterable[Confirmation]) -> None:
    """Stores measurements, and drops nothing."""
    engine.many(_PUT_CONFIRMATION, [(it.node, it.at, encode(it)) for it in confirmations])


def read_confirmation_rows(engine: Engine) -> tuple[Confirmation, ...]:
    """All, the oldest first."""
    text = "SELECT document FROM confirmations ORDER BY at DESC LIMIT ?"
    return documents(engine.run(text, (MAX_CONFIRMATIONS,)), Confirmation)[::-1]


VERSION: Final = 5
"""The version of the tables: in a file's `user_version`. A database of another one is refused."""

TABLES: Final = INCIDENT_TABLES + DIGEST_TABLES + FAULT_TABLES + CONFIRMATION_TABLES
"""The statements that make them."""
