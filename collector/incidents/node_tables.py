"""The tables of the incidents' database beside the incidents: their nodes and losses, nodes' faults and names, runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from laggard.collector.incidents.fault import Fault, NodeName
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.loss import Loss
from laggard.collector.incidents.run import Run
from laggard.wire import WireError, decode, encode

MAX_ROWS: Final = 16_384
"""The most faults that are over, and the most runs, that are kept; beyond them the oldest are dropped, runs first of
the user who has the most."""

MAX_ROW_BYTES: Final = 1 << 10
"""The size of such a row; each of the two tables may take an eighth of the file."""

MAX_NAMES: Final = 4096
"""The most names that are kept of machines which have other names now."""

_OPEN_UNTIL: Final = 1e18
"""The end of a loss that goes on: later than any moment."""

SCHEMA: Final = """
CREATE TABLE incident_nodes (
    node TEXT NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (node, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX nodes_of_incident ON incident_nodes (id);
CREATE TABLE losses (
    id INTEGER PRIMARY KEY,
    owner INTEGER NOT NULL,
    until REAL NOT NULL,
    document BLOB NOT NULL
) STRICT;
CREATE INDEX losses_by_end ON losses (until);
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
CREATE TABLE runs (
    owner INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    began_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    ended_at REAL,
    document BLOB NOT NULL,
    PRIMARY KEY (owner, job_id, began_at)
) STRICT;
CREATE INDEX runs_by_sight ON runs (seen_at);
"""
"""The statements that make version 3 of version 2."""

T = TypeVar("T")


class NodeRows(NamedTuple):
    """The rows that a round changed beside the incidents."""

    faults: tuple[Fault, ...] = ()
    names: tuple[NodeName, ...] = ()
    runs: tuple[Run, ...] = ()


class MachineRows(NamedTuple):
    """The faults of one machine, the newest first, and the names that it had. Until `others_until` (Unix seconds; 0:
    never) another machine had its present name."""

    faults: tuple[Fault, ...] = ()
    names: tuple[NodeName, ...] = ()
    others_until: float = 0.0


def fill_from_incidents(connection: sqlite3.Connection) -> None:
    """Fills the tables of a file of version 2: its incidents have nodes, and losses that are not counted."""
    last = 0
    while rows := connection.execute(
        "SELECT id, document FROM incidents WHERE id > ? ORDER BY id LIMIT 1000", (last,)
    ).fetchall():
        keep_beside(connection, _decoded((document for _, document in rows), Incident))
        last = rows[-1][0]


def keep_beside(connection: sqlite3.Connection, incidents: Iterable[Incident]) -> None:
    """Stores what is looked up of incidents: their nodes and what they took."""
    incidents = tuple(incidents)
    run = connection.executemany
    run("DELETE FROM incident_nodes WHERE id = ?", [(it.id,) for it in incidents])
    nodes = [(node, it.id) for it in incidents for node in it.culprit.machines]
    run("INSERT OR IGNORE INTO incident_nodes VALUES (?, ?)", nodes)
    losses = [
        (it.id, it.owner, _OPEN_UNTIL if it.closed_at is None else it.closed_at, encode(Loss.of(it)))
        for it in incidents
    ]
    run("INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?)", losses)


def drop_beside(connection: sqlite3.Connection, chosen: str, words: tuple[object, ...]) -> None:
    """Drops what is beside the incidents whose ids the statement `chosen` selects."""
    for table in ("incident_nodes", "losses"):
        connection.execute(f"DELETE FROM {table} WHERE id IN ({chosen})", words)


def keep_node_rows(connection: sqlite3.Connection, rows: NodeRows, now: float, keep: float, max_bytes: int) -> None:
    """Stores faults, names and runs in place of what was stored of them, and drops what is too old or too much."""
    run, many = connection.execute, connection.executemany
    faults = [(it.id, it.machine, it.node, it.closed_at, encode(it)) for it in rows.faults]
    many("INSERT OR REPLACE INTO faults VALUES (?, ?, ?, ?, ?)", faults)
    many("INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)",
         [(it.node, it.machine, it.seen_at, encode(it)) for it in rows.names])  # fmt: skip
    runs = [(it.owner, it.job_id, it.began_at, it.seen_at, it.ended_at, encode(it)) for it in rows.runs]
    many("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", runs)
    run("DELETE FROM faults WHERE closed_at < ?", (now - keep,))
    run("DELETE FROM names WHERE seen_at < ?", (now - keep,))
    run("DELETE FROM runs WHERE seen_at < ?", (now - keep,))
    most = min(MAX_ROWS, max_bytes // 8 // MAX_ROW_BYTES)
    over = "SELECT id FROM faults WHERE closed_at IS NOT NULL ORDER BY id LIMIT ?"
    if (excess := _count(connection, "faults WHERE closed_at IS NOT NULL") - most) > 0:
        run(f"DELETE FROM faults WHERE id IN ({over})", (excess,))
    while (excess := _count(connection, "runs") - most) > 0:
        heaviest = "SELECT owner FROM runs GROUP BY owner ORDER BY count(*) DESC LIMIT 1"
        oldest = f"SELECT rowid FROM runs WHERE owner = ({heaviest}) ORDER BY seen_at LIMIT ?"
        run(f"DELETE FROM runs WHERE rowid IN ({oldest})", (max(1, excess // 2),))


def has_node_tables(connection: sqlite3.Connection) -> bool:
    """Whether the file is of a release that keeps them."""
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'losses'").fetchone() is not None


def open_rows(connection: sqlite3.Connection, week_ago: float) -> tuple[NodeRows, tuple[Fault, ...]]:
    """The rows that a collector goes on with: the open faults, the names and the runs; and the faults that ended
    since."""
    run = connection.execute
    opened = run("SELECT document FROM faults WHERE closed_at IS NULL ORDER BY id DESC LIMIT ?", (2 * MAX_ROWS,))
    closed = run("SELECT document FROM faults WHERE closed_at >= ? ORDER BY id DESC LIMIT ?", (week_ago, MAX_ROWS))
    names = run("SELECT document FROM names ORDER BY seen_at DESC LIMIT ?", (65_536,))
    runs = run("SELECT document FROM runs WHERE ended_at IS NULL ORDER BY seen_at DESC LIMIT 4096")
    found = NodeRows(_documents(opened, Fault), _documents(names, NodeName), _documents(runs, Run))
    return found, _documents(closed, Fault)[::-1]


def machine_rows(connection: sqlite3.Connection, node: str, limit: int) -> MachineRows:
    """The faults of the machine that has the name now, under whatever name it had them, and its names."""
    run = connection.execute
    found = run("SELECT document FROM names WHERE node = ? ORDER BY seen_at DESC LIMIT 1", (node,))
    (named,) = _documents(found, NodeName) or (None,)
    if named is None or not named.machine:
        faults = run("SELECT document FROM faults WHERE node = ? ORDER BY id DESC LIMIT ?", (node, limit))
        return MachineRows(_documents(faults, Fault), (named,) if named else ())
    of_machine = "machine = ? OR (machine = '' AND node = ?)"
    words = (named.machine, node, limit)
    faults = run(f"SELECT document FROM faults WHERE {of_machine} ORDER BY id DESC LIMIT ?", words)
    names = run("SELECT document FROM names WHERE machine = ? ORDER BY seen_at DESC LIMIT 64", (named.machine,))
    others = run("SELECT max(seen_at) FROM names WHERE node = ? AND machine != ? AND machine != ''", words[1::-1])
    return MachineRows(_documents(faults, Fault), _documents(names, NodeName), others.fetchone()[0] or 0.0)


def faults_since(connection: sqlite3.Connection, since: float) -> tuple[Fault, ...]:
    """The faults that were open then or later, of all machines."""
    found = connection.execute(
        "SELECT document FROM faults WHERE closed_at IS NULL OR closed_at >= ? ORDER BY id DESC LIMIT ?",
        (since, MAX_ROWS),
    )
    return _documents(found, Fault)


def losses_since(connection: sqlite3.Connection, since: float, owner: int | None, limit: int) -> tuple[Loss, ...]:
    """The newest losses that lasted then or later."""
    where, words = ("until >= ? AND owner = ?", (since, owner)) if owner is not None else ("until >= ?", (since,))
    found = connection.execute(f"SELECT document FROM losses WHERE {where} ORDER BY id DESC LIMIT ?", (*words, limit))
    return _documents(found, Loss)


def runs_since(connection: sqlite3.Connection, since: float, owner: int | None) -> tuple[Run, ...]:
    """The newest runs that were seen then or later."""
    where, words = ("seen_at >= ? AND owner = ?", (since, owner)) if owner is not None else ("seen_at >= ?", (since,))
    found = connection.execute(
        f"SELECT document FROM runs WHERE {where} ORDER BY seen_at DESC LIMIT ?", (*words, MAX_ROWS)
    )
    return _documents(found, Run)


def _count(connection: sqlite3.Connection, what: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0])


def _documents(rows: Iterable[tuple[bytes]], kind: type[T]) -> tuple[T, ...]:
    return tuple(_decoded((row[0] for row in rows), kind))


def _decoded(documents: Iterable[bytes], kind: type[T]) -> Iterable[T]:
    """The rows that can be read: one row's damage costs that row."""
    for document in documents:
        try:
            yield decode(document, kind)
        except WireError:
            continue
