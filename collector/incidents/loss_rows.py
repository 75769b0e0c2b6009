"""The tables beside the incidents, to look them up by: the nodes that they are on, and what they took."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, put
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.loss import Loss
from laggard.wire import encode

_OPEN_UNTIL: Final = 1e18
"""The end of a loss that goes on: later than any moment."""

TABLES: Final = """
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
"""

_PUT: Final = put("losses", ("id", "owner", "until", "document"), 1)


def keep_beside(engine: Engine, incidents: Iterable[Incident]) -> None:
    """Stores what is looked up of incidents: their nodes and what they took."""
    incidents = tuple(incidents)
    engine.many("DELETE FROM incident_nodes WHERE id = ?", [(it.id,) for it in incidents])
    nodes = [(node, it.id) for it in incidents for node in it.culprit.machines]
    engine.many("INSERT INTO incident_nodes VALUES (?, ?) ON CONFLICT DO NOTHING", nodes)
    losses = [
        (it.id, it.owner, _OPEN_UNTIL if it.closed_at is None else it.closed_at, encode(Loss.of(it)))
        for it in incidents
    ]
    engine.many(_PUT, losses)


def drop_beside(engine: Engine, chosen: str, words: tuple[object, ...]) -> None:
    """Drops what is beside the incidents whose ids the statement `chosen` selects."""
    for table in ("incident_nodes", "losses"):
        engine.run(f"DELETE FROM {table} WHERE id IN ({chosen})", words)


def read_since(engine: Engine, since: float, owner: int | None, limit: int) -> tuple[Loss, ...]:
    """The newest losses that lasted then or later."""
    where, words = ("until >= ? AND owner = ?", (since, owner)) if owner is not None else ("until >= ?", (since,))
    text = f"SELECT document FROM losses WHERE {where} ORDER BY id DESC LIMIT ?"
    return documents(engine.run(text, (*words, limit)), Loss)
