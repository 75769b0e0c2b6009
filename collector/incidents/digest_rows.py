"""The table of runs' digests, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, drop_oldest_of_heaviest, put
from laggard.collector.incidents.kept_digest import FIRST, LAST, AskedDigest, KeptDigest, incident_of
from laggard.wire.digest import Digest

TABLES: Final = """
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

SHARE, MAX_DIGEST_BYTES = 4, 16 << 10
"""Digests of this size, of which the largest jobs' are, may take a quarter of max_bytes."""

_COLUMNS: Final = ("owner", "job_id", "started_at", "run", "script", "world_size", "made_at", "document")
_PUT: Final = put("digests", _COLUMNS, 4)


def keep(engine: Engine, kept: Iterable[KeptDigest], since: float, max_bytes: int) -> None:
    """Stores digests, in place of those of the same run, within the transaction of whoever calls it, and drops what is
    too old or too much. `since`: older ones are dropped."""
    engine.run("DELETE FROM digests WHERE made_at < ?", (since,))
    engine.many(_PUT, [it.row() for it in kept])
    most = min(MAX_DIGESTS, max_bytes // SHARE // MAX_DIGEST_BYTES)
    drop_oldest_of_heaviest(engine, "digests", "owner, job_id, started_at, run", "made_at", most)


def put_later(engine: Engine, kept: KeptDigest) -> None:
    """Stores a digest where there is none that was made later; of what a run was like when an incident began the first
    one stays."""
    if not has_first(engine, kept):
        engine.many(f"{_PUT} WHERE excluded.made_at >= digests.made_at", [kept.row()])


def has_first(engine: Engine, kept: KeptDigest) -> bool:
    """Whether it is of a run as it was when an incident began, and there is one of that already."""
    if incident_of(kept.run) is None:
        return False
    words = (kept.owner, kept.job_id, kept.digest.started_at or 0.0, kept.run)
    text = "SELECT 1 FROM digests WHERE owner = ? AND job_id = ? AND started_at = ? AND run = ?"
    return bool(engine.run(text, words))


def read(engine: Engine, asked: AskedDigest) -> Digest | None:
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
