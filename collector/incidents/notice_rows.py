"""The tables of notices: what waits to be sent, and what was told of open incidents. They are written together with the
incidents, in one transaction: after a crash both are there, or neither."""

from __future__ import annotations

from typing import Final

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, put
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


_PUT: Final = put("notices", ("id", "made_at", "document"), 1)
_PUT_TOLD: Final = put("told", ("incident", "document"), 1)


def write(engine: Engine, changes: NoticeChanges) -> None:
    """Writes within the transaction of whoever calls it."""
    done = set(changes.done)
    engine.many(_PUT, [(it.id, it.at, encode(it)) for it in changes.made if it.id not in done])
    engine.many("DELETE FROM notices WHERE id = ?", [(it,) for it in changes.done])
    engine.many(_PUT_TOLD, [(number, encode(it)) for number, it in changes.told.items() if it is not None])
    closed = [(number,) for number, it in changes.told.items() if it is None]
    engine.many("DELETE FROM told WHERE incident = ?", closed)


def read(engine: Engine, limit: int) -> tuple[Notice, ...]:
    """The newest that wait, the oldest of these first."""
    text = f"SELECT document FROM notices ORDER BY {engine.arrival} DESC LIMIT ?"
    return documents(engine.run(text, (limit,))[::-1], Notice)


def read_told(engine: Engine) -> dict[int, Told]:
    """Returns what was told, by incident; of those that are no longer in the file it is forgotten."""
    engine.run("DELETE FROM told WHERE incident NOT IN (SELECT id FROM incidents WHERE closed_at IS NULL)")
    found = {}
    for number, document in engine.run("SELECT incident, document FROM told LIMIT 65536"):
        try:
            found[number] = decode(document, Told)
        except WireError:
            continue
    return found
