"""The table of what was advised: a row for each run, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, drop_oldest_of_heaviest, put
from laggard.collector.incidents.kept_advice import AdviceQuery, RunAdvice
from laggard.recommend.outcome.values import RunOutcomes
from laggard.wire import encode

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


_COLUMNS: Final = ("owner", "job_id", "started_at", "script", "world_size", "made_at", "document")
_PUT: Final = put("advice", _COLUMNS, 3)


def keep(engine: Engine, runs: Iterable[RunAdvice], since: float, max_bytes: int) -> None:
    """Stores what was advised of runs, in place of what was stored of them, within the transaction of whoever calls it,
    and drops what is too old or too much. `since`: older ones are dropped."""
    engine.run("DELETE FROM advice WHERE made_at < ?", (since,))
    engine.many(_PUT, [_row(it) for it in runs])
    most = min(MAX_RUNS, max_bytes // SHARE // MAX_RUN_BYTES)
    drop_oldest_of_heaviest(engine, "advice", "owner, job_id, started_at", "made_at", most)


def put_later(engine: Engine, runs: Iterable[RunAdvice]) -> None:
    """Stores what was advised of runs, where nothing is stored of them that was advised later."""
    engine.many(f"{_PUT} WHERE excluded.made_at >= advice.made_at", [_row(it) for it in runs])


def _row(it: RunAdvice) -> tuple[int, str, float, str, int, float, bytes]:
    return it.owner, it.job_id, it.started_at, it.script, it.world_size, it.made_at, encode(it)


def read(engine: Engine, query: AdviceQuery, kind: type[Kept]) -> tuple[Kept, ...]:
    """The newest first, with the run's digest or without."""
    conditions: dict[str, str | float | None] = {
        "owner = ?": query.owner,
        "job_id = ?": query.job_id,
        "made_at >= ?": query.since,
        "script = ?": query.script,
        "world_size = ?": query.world_size,
        "made_at <= ?": query.until,
    }
    asked = {text: value for text, value in conditions.items() if value is not None}
    where = " AND ".join([*asked, "TRUE"])
    text = f"SELECT document FROM advice WHERE {where} ORDER BY made_at DESC LIMIT ?"
    return documents(engine.run(text, (*asked.values(), query.limit)), kind)
