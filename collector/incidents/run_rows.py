"""The table of jobs' runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, drop_oldest_of_heaviest, put
from laggard.collector.incidents.run import Run
from laggard.wire import encode

TABLES: Final = """
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

_PUT: Final = put("runs", ("owner", "job_id", "began_at", "seen_at", "ended_at", "document"), 3)


def store(engine: Engine, runs: Iterable[Run]) -> None:
    """Stores runs, in place of what was stored of them."""
    engine.many(_PUT, [(it.owner, it.job_id, it.began_at, it.seen_at, it.ended_at, encode(it)) for it in runs])


def bound(engine: Engine, since: float, most: int) -> None:
    """Drops those that were last seen before `since`, and those beyond `most`."""
    engine.run("DELETE FROM runs WHERE seen_at < ?", (since,))
    drop_oldest_of_heaviest(engine, "runs", "owner, job_id, began_at", "seen_at", most)


def read_one(engine: Engine, owner: int, job_id: str, began_at: float) -> Run | None:
    text = "SELECT document FROM runs WHERE owner = ? AND job_id = ? AND began_at = ?"
    found = documents(engine.run(text, (owner, job_id, began_at)), Run)
    return found[0] if found else None


def read_open(engine: Engine) -> tuple[Run, ...]:
    text = "SELECT document FROM runs WHERE ended_at IS NULL ORDER BY seen_at DESC LIMIT 4096"
    return documents(engine.run(text), Run)


def read_since(engine: Engine, since: float, owner: int | None, limit: int) -> tuple[Run, ...]:
    """The newest runs that were seen then or later."""
    where, words = ("seen_at >= ? AND owner = ?", (since, owner)) if owner is not None else ("seen_at >= ?", (since,))
    text = f"SELECT document FROM runs WHERE {where} ORDER BY seen_at DESC LIMIT ?"
    return documents(engine.run(text, (*words, limit)), Run)
