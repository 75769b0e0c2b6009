"""The table of incidents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.collector.incidents.documents import decoded
from laggard.collector.incidents.engine import Engine, count, put
from laggard.collector.incidents.incident import Incident, IncidentQuery
from laggard.wire import encode

TABLES: Final = """
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

_PUT: Final = put("incidents", ("id", "owner", "job_id", "closed_at", "document"), 1)


class Rows(NamedTuple):
    """Incidents, the newest first. `last_id` is the smallest id that was read, None where all were; `damaged` counts
    rows that are no incidents."""

    incidents: tuple[Incident, ...]
    last_id: int | None = None
    damaged: int = 0


def store(engine: Engine, incidents: Iterable[Incident]) -> None:
    """Stores incidents, in place of what was stored of them, within the transaction of whoever calls it."""
    rows = tuple(incidents)
    engine.many(_PUT, [(it.id, it.owner, it.job_id, it.closed_at, encode(it)) for it in rows])
    engine.many("DELETE FROM incident_nodes WHERE id = ?", [(it.id,) for it in rows])
    nodes = [(node, it.id) for it in rows for node in it.culprit.machines]
    engine.many("INSERT INTO incident_nodes VALUES (?, ?) ON CONFLICT DO NOTHING", nodes)


def drop_older(engine: Engine, moment: float) -> None:
    """Drops what was closed before that."""
    _drop(engine, "SELECT id FROM incidents WHERE closed_at < ?", (moment,))


def drop_some_of_heaviest(engine: Engine) -> bool:
    """Drops the oldest closed incidents of the user who has the most: who floods the file loses their own. Returns
    whether there was one."""
    heaviest = "SELECT owner, count(*) FROM incidents WHERE closed_at IS NOT NULL GROUP BY owner ORDER BY 2 DESC"
    oldest = "SELECT id FROM incidents WHERE owner = ? AND closed_at IS NOT NULL ORDER BY id LIMIT ?"
    found = engine.run(f"{heaviest} LIMIT 1")
    if not found:
        return False
    owner, number = found[0]
    with engine.transaction():
        _drop(engine, oldest, (owner, max(1, number // 8)))
    return True


def _drop(engine: Engine, chosen: str, words: tuple[object, ...]) -> None:
    """Drops the incidents whose ids the statement `chosen` selects, and the rows of their nodes."""
    engine.run(f"DELETE FROM incident_nodes WHERE id IN ({chosen})", words)
    engine.run(f"DELETE FROM incidents WHERE id IN ({chosen})", words)


def read(engine: Engine, query: IncidentQuery) -> Rows:
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


def count_open(engine: Engine) -> int:
    return count(engine, "incidents WHERE closed_at IS NULL")
