"""The rows that wait to be written into the database: bounded, and the newest of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from laggard.collector.incidents.incident import Fault, Incident, KeptDigest, NodeName
from laggard.collector.incidents.tables import MAX_CONFIRMATIONS
from laggard.wire.exclusion import Confirmation

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(Generic[K, V]):
    """Holds at most `most` values: beyond them those are lost that were put in first. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[V]:
        return iter(self._values.values())

    def put(self, values: Iterable[tuple[K, V]]) -> None:
        """Takes values, in place of those with the same keys, as the newest."""
        for key, value in values:
            self._values.pop(key, None)
            self._values[key] = value
        while len(self._values) > self._most:
            del self._values[next(iter(self._values))]

    def drop(self, keys: Iterable[K]) -> None:
        for key in keys:
            self._values.pop(key, None)

    def take(self) -> dict[K, V]:
        """Empties it. Returns what was in it."""
        taken, self._values = self._values, {}
        return taken

    def put_back(self, taken: Mapping[K, V]) -> None:
        """Takes what could not be written, under what came since."""
        newer = self.take()
        self.put({**taken, **newer}.items())


MAX_UNWRITTEN = 8192
"""The most incidents that wait for a database that fails; then the oldest are lost."""

MAX_UNWRITTEN_DIGESTS = 256
"""The most digests that wait for the disk; then the oldest are lost."""

MAX_UNWRITTEN_ROWS = 65_536
"""The most faults, and the most names, that wait for the disk; then the oldest are lost."""


class Batch(NamedTuple):
    """The rows that are written at once."""

    incidents: dict[int, Incident]
    digests: dict[tuple[int, str, str], KeptDigest]
    confirmations: dict[tuple[str, float], Confirmation]
    faults: dict[int, Fault]
    names: dict[tuple[str, str], NodeName]


class Waiting:
    """The rows that wait to be written, by kind. Not thread-safe."""

    def __init__(self) -> None:
        self.incidents: Newest[int, Incident] = Newest(MAX_UNWRITTEN)
        self.digests: Newest[tuple[int, str, str], KeptDigest] = Newest(MAX_UNWRITTEN_DIGESTS)
        self.confirmations: Newest[tuple[str, float], Confirmation] = Newest(MAX_CONFIRMATIONS)
        self.faults: Newest[int, Fault] = Newest(MAX_UNWRITTEN_ROWS)
        self.names: Newest[tuple[str, str], NodeName] = Newest(MAX_UNWRITTEN_ROWS)

    def __bool__(self) -> bool:
        return any(
            len(kind) > 0 for kind in (self.incidents, self.digests, self.confirmations, self.faults, self.names)
        )

    def take(self) -> Batch:
        """Takes all of it."""
        return Batch(
            self.incidents.take(),
            self.digests.take(),
            self.confirmations.take(),
            self.faults.take(),
            self.names.take(),
        )

    def put_back(self, batch: Batch) -> None:
        """Takes what could not be written, to try it again, but digests."""
        self.incidents.put_back(batch.incidents)
        self.confirmations.put_back(batch.confirmations)
        self.faults.put_back(batch.faults)
        self.names.put_back(batch.names)
