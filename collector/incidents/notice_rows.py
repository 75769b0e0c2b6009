"""The tables of notices: what waits to be sent, and what was told of open incidents. They are written together with the
incidents, in one transaction: after a crash both are there, or neither."""

from __future__ import annotations

import sqlite3
from typing import Final

from laggard.collector.incidents.notice import Notice, NoticeChanges, Told
from laggard.wire import WireError, decode, encode

TABLES: Final = """
CREATE TABLE notices (
    id TEXT PRIMARY KEY,
    made_at REAL NOT NULL,
    document BLOB NOT NULL
) STRICT;
CREATE TABLE told (
    incident INTEGER PRIMARY KEY,
    document BLOB NOT NULL
) STRICT;
"""


def write_notices(connection: sqlite3.Connection, changes: NoticeChanges) -> None:
    """Writes within the transaction of whoever calls it."""
    run = connection.executemany
    done = set(changes.done)
    rows = [(it.id, it.at, encode(it)) for it in changes.made if it.id not in done]
    run("INSERT OR REPLACE INTO notices (id, made_at, document) VALUES (?, ?, ?)", rows)
    run("DELETE FROM notices WHERE id = ?", [(it,) for it in changes.done])
    told = [(number, encode(it)) for number, it in changes.told.items() if it is not None]
    run("INSERT OR REPLACE INTO told (incident, document) VALUES (?, ?)", told)
    run("DELETE FROM told WHERE incident = ?", [(number,) for number, it in changes.told.items() if it is None])


def read_notices(connection: sqlite3.Connection, limit: int) -> tuple[Notice, ...]:
    """The newest that wait, the oldest of these first. One row's damage costs that row."""
    rows = connection.execute("SELECT document FROM notices ORDER BY rowid DESC LIMIT ?", (limit,)).fetchall()
    found = []
    for (document,) in reversed(rows):
        try:
            found.append(decode(document, Notice))
        except WireError:
            continue
    return tuple(found)


def read_told(connection: sqlite3.Connection) -> dict[int, Told]:
    """Returns what was told, by incident; of those that are no longer in the file it is forgotten."""
    connection.execute("DELETE FROM told WHERE incident NOT IN (SELECT id FROM incidents WHERE closed_at IS NULL)")
    found = {}
    for number, document in connection.execute("SELECT incident, document FROM told LIMIT 65536"):
        try:
            found[number] = decode(document, Told)
        except WireError:
            continue
    return found
