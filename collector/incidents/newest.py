"""The newest value of each key, bounded: what waits for the database, and what is remembered without one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(Generic[K, V]):
    """At most `most` values: beyond them those are lost that were put in first. Not thread-safe."""

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
