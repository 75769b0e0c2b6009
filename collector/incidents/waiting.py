"""The rows that wait to be written into the database: bounded, and the newest of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from laggard.collector.incidents.confirmation_rows import MAX_CONFIRMATIONS
from laggard.collector.incidents.fault import Fault, NodeName
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.kept_digest import KeptDigest
from laggard.collector.incidents.newest import Newest
from laggard.collector.incidents.notice import Notice, NoticeChanges, Told
from laggard.collector.incidents.outbox import MAX_WAITING
from laggard.wire.exclusion import Confirmation

MAX_UNWRITTEN = 8192
"""The most incidents that wait for a database that fails; then the oldest are lost."""

MAX_UNWRITTEN_DIGESTS = 256
"""The most digests that wait for the disk; then the oldest are lost."""

MAX_UNWRITTEN_TOLD = 65_536
"""The most incidents of which waits for the disk what was told of them."""

MAX_UNWRITTEN_ROWS = 65_536
"""The most faults and names that wait for the disk; then the oldest are lost."""


class Batch(NamedTuple):
    """The rows that are written at once."""

    incidents: dict[int, Incident]
    digests: dict[tuple[int, str, str], KeptDigest]
    notices: dict[str, Notice]
    told: dict[int, Told | None]
    done: tuple[str, ...]
    confirmations: dict[tuple[str, float], Confirmation]
    rows: dict[tuple[object, ...], Fault | NodeName]

    @property
    def changes(self) -> NoticeChanges:
        return NoticeChanges(tuple(self.notices.values()), self.done, self.told)


class Waiting:
    """The rows that wait to be written, by kind. Not thread-safe."""

    def __init__(self) -> None:
        self.incidents: Newest[int, Incident] = Newest(MAX_UNWRITTEN)
        self.digests: Newest[tuple[int, str, str], KeptDigest] = Newest(MAX_UNWRITTEN_DIGESTS)
        self.notices: Newest[str, Notice] = Newest(MAX_WAITING)
        self.told: Newest[int, Told | None] = Newest(MAX_UNWRITTEN_TOLD)
        self.confirmations: Newest[tuple[str, float], Confirmation] = Newest(MAX_CONFIRMATIONS)
        self.rows: Newest[tuple[object, ...], Fault | NodeName] = Newest(MAX_UNWRITTEN_ROWS)

    def __bool__(self) -> bool:
        incidents = (self.incidents, self.notices, self.told)
        others = (self.digests, self.confirmations, self.rows)
        return any(len(kind) > 0 for kind in (*incidents, *others))

    def take(self, done: tuple[str, ...]) -> Batch:
        """Takes all of it. `done`: the ids of notices that need not be kept any more."""
        return Batch(
            self.incidents.take(),
            self.digests.take(),
            self.notices.take(),
            self.told.take(),
            done,
            self.confirmations.take(),
            self.rows.take(),
        )

    def put_back(self, batch: Batch, done: Iterable[str]) -> None:
        """Takes what could not be written, to try it again, but digests. `done`: as of take(), now."""
        ended = set(done)
        self.incidents.put_back(batch.incidents)
        self.notices.put_back({key: it for key, it in batch.notices.items() if key not in ended})
        self.told.put_back(batch.told)
        self.confirmations.put_back(batch.confirmations)
        self.rows.put_back(batch.rows)
