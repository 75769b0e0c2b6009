"""The rows that wait to be written into the database: bounded, and the newest of each."""

from __future__ import annotations

from typing import NamedTuple

from laggard.collector.incidents.confirmation_rows import MAX_CONFIRMATIONS
from laggard.collector.incidents.fault import Fault, NodeName
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.kept_digest import KeptDigest
from laggard.collector.incidents.newest import Newest
from laggard.wire.exclusion import Confirmation

MAX_UNWRITTEN = 8192
"""The most incidents that wait for a database that fails; then the oldest are lost."""

MAX_UNWRITTEN_DIGESTS = 256
"""The most digests that wait for the disk; then the oldest are lost."""

MAX_UNWRITTEN_ROWS = 65_536
"""The most faults and names that wait for the disk; then the oldest are lost."""


class Batch(NamedTuple):
    """The rows that are written at once."""

    incidents: dict[int, Incident]
    digests: dict[tuple[int, str, str], KeptDigest]
    confirmations: dict[tuple[str, float], Confirmation]
    rows: dict[tuple[object, ...], Fault | NodeName]


class Waiting:
    """The rows that wait to be written, by kind. Not thread-safe."""

    def __init__(self) -> None:
        self.incidents: Newest[int, Incident] = Newest(MAX_UNWRITTEN)
        self.digests: Newest[tuple[int, str, str], KeptDigest] = Newest(MAX_UNWRITTEN_DIGESTS)
        self.confirmations: Newest[tuple[str, float], Confirmation] = Newest(MAX_CONFIRMATIONS)
        self.rows: Newest[tuple[object, ...], Fault | NodeName] = Newest(MAX_UNWRITTEN_ROWS)

    def __bool__(self) -> bool:
        return any(len(kind) > 0 for kind in (self.incidents, self.digests, self.confirmations, self.rows))

    def take(self) -> Batch:
        """Takes all of it."""
        return Batch(
            self.incidents.take(),
            self.digests.take(),
            self.confirmations.take(),
            self.rows.take(),
        )

    def put_back(self, batch: Batch) -> None:
        """Takes what could not be written, to try it again, but digests."""
        self.incidents.put_back(batch.incidents)
        self.confirmations.put_back(batch.confirmations)
        self.rows.put_back(batch.rows)
