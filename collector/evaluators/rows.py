"""The rows that evaluators share in PostgreSQL: who of them is alive, and the verdict on each job. Times are the
database's.

Both are facts about now, and no part of the history of incidents: who lost them has them again within a round. So the
tables are unlogged (after a crash of the server they are empty), and neither has a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from laggard.collector.incidents.postgres import PostgresStore
from laggard.collector.jobs.key import JobKey
from laggard.model import Location
from laggard.wire import WireError, decode, encode

MAX_EVALUATORS: Final = 256
"""The most evaluators of one group."""

MAX_DOCUMENT_BYTES: Final = 128 << 10
"""The most bytes of a verdict that is read: evaluators of this release write half as many."""

FORGET_SECONDS: Final = 3600
"""The time after which the row of a verdict goes that nobody renews: of a group that is no more."""

_CHUNK: Final = 64
"""The most documents in one answer."""

_TABLES: Final = (
    "CREATE UNLOGGED TABLE IF NOT EXISTS evaluators (fleet TEXT NOT NULL, name TEXT NOT NULL,"
    " until TIMESTAMPTZ NOT NULL, PRIMARY KEY (fleet, name))",
    "CREATE UNLOGGED TABLE IF NOT EXISTS verdicts (fleet TEXT NOT NULL, owner BIGINT NOT NULL, job_id TEXT NOT NULL,"
    " judged_at TIMESTAMPTZ NOT NULL, judged_by TEXT NOT NULL, document BYTEA NOT NULL,"
    " PRIMARY KEY (fleet, owner, job_id))",
)


class VerdictDocument(Struct, frozen=True):
    """The document of a row: the job's verdict, whether it runs, and when it last got on (Unix time, by its node's
    clock)."""

    location: Location
    running: bool
    progressed_at: float


class Mark(NamedTuple):
    """The mark of a row's verdict: who judged, when (in words, which are compared and not reckoned with), and how many
    seconds ago."""

    by: str
    at: str
    age_seconds: float


class VerdictRow(NamedTuple):
    key: JobKey
    age_seconds: float
    verdict: VerdictDocument


class Rows:
    """One group's rows, over a connection that other collectors need not wait for. Its methods raise what psycopg does:
    `store.told()` goes around them."""

    def __init__(self, store: PostgresStore, fleet: str) -> None:
        self._store, self._fleet = store, fleet
        with store.transaction():  # two that make one table at the same time would get in each other's way
            for statement in _TABLES:
                store.run(statement)

    def renew(self, name: str, seconds: float) -> None:
        """Says that an evaluator is alive, for so many seconds."""
        text = (
            "INSERT INTO evaluators (fleet, name, until) VALUES (?, ?, now() + make_interval(secs => ?))"
            " ON CONFLICT (fleet, name) DO UPDATE SET until = excluded.until"
        )
        self._store.run(text, (self._fleet, name, seconds))

    def leave(self, name: str) -> None:
        self._store.run("DELETE FROM evaluators WHERE fleet = ? AND name = ?", (self._fleet, name))

    def live(self) -> tuple[str, ...]:
        """The evaluators that are alive, by name."""
        self._store.run("DELETE FROM evaluators WHERE until < now() - interval '1 hour'")
        text = "SELECT name FROM evaluators WHERE fleet = ? AND until > now() ORDER BY name LIMIT ?"
        return tuple(name for (name,) in self._store.run(text, (self._fleet, MAX_EVALUATORS)))

    def put(self, by: str, rows: Iterable[VerdictRow]) -> None:
        """Stores verdicts, but where a newer one is there."""
        text = (
            "INSERT INTO verdicts (fleet, owner, job_id, judged_at, judged_by, document)"
            " VALUES (?, ?, ?, now() - make_interval(secs => ?), ?, ?)"
            " ON CONFLICT (fleet, owner, job_id) DO UPDATE SET judged_at = excluded.judged_at,"
            " judged_by = excluded.judged_by, document = excluded.document"
            " WHERE verdicts.judged_at <= excluded.judged_at"
        )
        for it in rows:
            self._store.run(text, (self._fleet, *it.key, it.age_seconds, by, encode(it.verdict)))

    def drop(self, keys: Iterable[JobKey]) -> None:
        """Drops the verdicts on jobs that Prometheus no longer has."""
        for key in keys:
            text = "DELETE FROM verdicts WHERE fleet = ? AND owner = ? AND job_id = ?"
            self._store.run(text, (self._fleet, *key))

    def forget_old(self) -> None:
        """Drops the verdicts that nobody renews, in whatever group."""
        self._store.run("DELETE FROM verdicts WHERE judged_at < now() - make_interval(secs => ?)", (FORGET_SECONDS,))

    def marks(self, limit: int) -> dict[JobKey, Mark]:
        """The mark of each row, the newest `limit`."""
        text = (
            "SELECT owner, job_id, judged_by, judged_at::text, extract(epoch FROM now() - judged_at)::float8"
            " FROM verdicts WHERE fleet = ? ORDER BY judged_at DESC LIMIT ?"
        )
        found = self._store.run(text, (self._fleet, limit))
        return {JobKey(owner, job_id): Mark(by, at, age) for owner, job_id, by, at, age in found}

    def verdicts(self, keys: Sequence[JobKey]) -> dict[JobKey, VerdictDocument]:
        """The verdicts in these jobs' rows; without those that are gone, and those that cannot be read."""
        found: dict[JobKey, VerdictDocument] = {}
        for start in range(0, len(keys), _CHUNK):
            some = keys[start : start + _CHUNK]
            places = ", ".join("(?, ?)" for _ in some)
            text = (
                "SELECT owner, job_id, document FROM verdicts WHERE fleet = ? AND octet_length(document) <= ?"
                f" AND (owner, job_id) IN ({places})"
            )
            words = (self._fleet, MAX_DOCUMENT_BYTES, *(it for key in some for it in key))
            for owner, job_id, document in self._store.run(text, words):
                try:
                    found[JobKey(owner, job_id)] = decode(document, VerdictDocument)
                except WireError:  # of another release: one row's damage costs that row
                    continue
        return found
