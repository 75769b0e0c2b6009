"""The table of what was advised: a row for each run, bounded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final, TypeVar

from laggard.collector.incidents.kept_advice import AdviceQuery, RunAdvice
from laggard.recommend.outcome.values import RunOutcomes
from laggard.wire import WireError, decode, encode

Kept = TypeVar("Kept", bound=RunOutcomes)

TABLES: Final = """
CREATE TABLE advice (
    owner INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    started_at REAL NOT NULL,
    script TEXT NOT NULL,
    world_size INTEGER NOT NULL,
    made_at REAL NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (owner, job_id, started_at)
) STRICT;
CREATE INDEX advice_of_script ON advice (owner, script, world_size, made_at);
CREATE INDEX advice_by_time ON advice (made_at);
"""

MAX_RUNS: Final = 1024
"""The most runs; beyond them the oldest of the user who has the most are dropped."""

SHARE, MAX_RUN_BYTES = 8, 24 << 10
"""Runs of this size may take an eighth of max_bytes."""


def write(connection: sqlite3.Connection, runs: Iterable[RunAdvice], since: float, most: int) -> None:
    """Writes within the transaction of whoever calls it. `since`: older ones are dropped."""
    connection.execute("DELETE FROM advice WHERE made_at < ?", (since,))
    connection.executemany("INSERT OR REPLACE INTO advice VALUES (?, ?, ?, ?, ?, ?, ?)", [_row(it) for it in runs])
    while (excess := connection.execute("SELECT count(*) FROM advice").fetchone()[0] - most) > 0:
        heaviest = "SELECT owner FROM advice GROUP BY owner ORDER BY count(*) DESC LIMIT 1"
        drop = (
            "DELETE FROM advice WHERE rowid IN"
            f" (SELECT rowid FROM advice WHERE owner = ({heaviest}) ORDER BY made_at LIMIT ?)"
        )
        connection.execute(drop, (max(1, excess // 2),))


def _row(it: RunAdvice) -> tuple[int, str, float, str, int, float, bytes]:
    return it.owner, it.job_id, it.started_at, it.script, it.world_size, it.made_at, encode(it)


def read(connection: sqlite3.Connection, query: AdviceQuery, kind: type[Kept]) -> tuple[Kept, ...]:
    """The newest first, with the run's digest or without. One row's damage costs that row."""
    conditions: dict[str, str | float | None] = {
        "owner = ?": query.owner,
        "job_id = ?": query.job_id,
        "made_at >= ?": query.since,
        "script = ?": query.script,
        "world_size = ?": query.world_size,
        "made_at <= ?": query.until,
    }
    asked = {text: value for text, value in conditions.items() if value is not None}
    where = " AND ".join([*asked, "1"])
    text = f"SELECT document FROM advice WHERE {where} ORDER BY made_at DESC LIMIT ?"
    found = []
    for (document,) in connection.execute(text, (*asked.values(), query.limit)):
        try:
            found.append(decode(document, kind))
        except WireError:
            continue
    return tuple(found)
