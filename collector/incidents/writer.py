"""The thread that writes what changes into the database, opens that again after it failed, and takes what other
collectors wrote. What waits meanwhile is bounded, and the newest of each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import structs

from laggard.collector.incidents.incident import HistoryState, Incident, Moment
from laggard.collector.incidents.reads import MAX_CONFIRMATIONS, shown
from laggard.collector.incidents.rows import OwnIds
from laggard.collector.incidents.schema import DatabaseError
from laggard.collector.incidents.store import Batch, News, Store, StoreSettings

log = logging.getLogger("laggard.collector")

RETRY_SECONDS = 60.0
SHARED_RETRY_SECONDS = 5.0
"""The time after which what failed is tried again; and where a server keeps it, which is soon there again, or another
machine in its place."""

STUCK_SECONDS = 30.0
NEWS_SECONDS = 30.0
"""The time after which a collector asks again what others wrote into a database that they share."""

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

    def items(self) -> Iterable[tuple[K, V]]:
        return self._values.items()

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

    def take(self, most: int) -> dict[K, V]:
        """Takes the oldest out of it, so many at most."""
        taken = dict(list(self._values.items())[:most])
        self.drop(taken)
        return taken

    def put_back(self, taken: Mapping[K, V]) -> None:
        """Takes what could not be written, under what came since."""
        newer, self._values = self._values, {}
        self.put({**taken, **newer}.items())


MAX_AT_ONCE: Final = 1024
"""The most rows of a kind in one transaction: some megabytes, for which others wait."""

WAITING: Final[Mapping[str, tuple[int, Callable[[Any], Hashable]]]] = {
    "incidents": (8192, lambda it: it.id),
    "faults": (65_536, lambda it: it.id),
    "names": (65_536, lambda it: (it.node, it.machine)),
    "confirmations": (MAX_CONFIRMATIONS, lambda it: (it.node, it.at)),
    "digests": (256, lambda it: (it.owner, it.job_id, it.run)),
}
"""The most rows of each kind that wait for a database that fails, beyond which the oldest are lost, and their keys."""


class Keeper(Protocol):
    """What a writer tells."""

    def begun(self, store: Store, is_first: bool) -> Sequence[Incident]: ...

    def know(self, news: News) -> None: ...


class Writer:
    """put() and what is asked may be called by any thread."""

    def __init__(self, settings: StoreSettings, ids: OwnIds, clock: Callable[[], Moment], keeper: Keeper) -> None:
        self._settings, self._ids, self._clock, self._keeper = settings, ids, clock, keeper
        self.state = HistoryState("off", "the database has not been opened yet")
        self.changed = threading.Condition()
        self.store: Store | None = None
        self._waiting = {kind: Newest[Any, Any](most) for kind, (most, _) in WAITING.items()}
        self._writing_since: float | None = None
        self._news_at = clock().monotonic
        self._ends = False
        self._thread = threading.Thread(target=self._write_for_ever, name="incidents", daemon=True)

    def start(self) -> None:
        """Opens the database, if it can be, and writes from then on."""
        self._open(is_first=True)
        self._thread.start()

    def put(self, **values: Iterable[Any]) -> None:
        """Has values stored, by kind of WAITING, unless nobody asked for a database."""
        if self.state.state == "off":
            return
        with self.changed:
            for kind, some in values.items():
                key = WAITING[kind][1]
                self._waiting[kind].put((key(it), it) for it in some)
            self.changed.notify_all()

    def waiting(self, kind: str) -> list[Any]:
        """The values of a kind that are not written yet."""
        with self.changed:
            return list(self._waiting[kind])

    def _is_due(self) -> bool:
        return any(len(kind) > 0 for kind in self._waiting.values())

    def told_state(self) -> HistoryState:
        """The state, `failed` also while the disk does not answer."""
        since = self._writing_since
        if since is not None and self._clock().monotonic - since > STUCK_SECONDS:
            who = "the database" if self._settings.is_shared else "the disk"
            return HistoryState("failed", f"{shown(self._settings.place)}: {who} has not answered for over 30 s")
        return self.state

    def flush(self, seconds: float) -> bool:
        """Returns whether everything was written within `seconds`."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._is_due() and self._writing_since is None, seconds)

    def close(self) -> None:
        """Writes what is left, if the disk answers soon."""
        if self.state.state == "on":
            self.flush(2.0)
        with self.changed:
            self._ends = True
            self.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(2.0)  # it closes the file; a disk that hangs does not keep the collector

    def _write_for_ever(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._is_due() or self._ends, self._patience())
                if self._ends:
                    break
                taken = {kind: waiting.take(MAX_AT_ONCE) for kind, waiting in self._waiting.items()}
                self._writing_since = self._clock().monotonic
            was_open = self.store is not None
            is_written = self._write(Batch(**{kind: tuple(some.values()) for kind, some in taken.items()}))
            with self.changed:
                self._writing_since = None
                if not is_written:
                    for kind, some in taken.items():
                        self._waiting[kind].put_back(some)
                self.changed.notify_all()
                if not is_written and self.changed.wait_for(lambda: self._ends, self._pause(was_open)):
                    break
        if self.store is not None:
            self.store.close()

    def _pause(self, was_open: bool) -> float:
        """The seconds until what failed is tried again. A connection may have ended long ago, with a server that is
        there again."""
        if not self._settings.is_shared:
            return RETRY_SECONDS
        return 0.0 if was_open else SHARED_RETRY_SECONDS

    def _patience(self) -> float | None:
        """The seconds until others are to be asked for news; None where there are none."""
        if not self._settings.is_shared:
            return None
        return max(0.0, NEWS_SECONDS - (self._clock().monotonic - self._news_at))

    def _open(self, is_first: bool = False) -> Sequence[Incident]:
        """Opens the database. Returns the incidents that are open there and nobody watched."""
        try:
            self.store = Store(self._settings, self._ids)
            left = self._keeper.begun(self.store, is_first)
            self.state = HistoryState("on", bytes=self.store.bytes)
            return left
        except DatabaseError as error:
            self._failed(error)
            return ()

    def _failed(self, error: DatabaseError) -> None:
        log.error("no history of incidents: %s", error)
        self.state = HistoryState("failed", str(error))
        if self.store is not None:
            self.store.close()
            self.store = None

    def _write(self, batch: Batch) -> bool:
        """Returns whether it is in the database; opens one that could not be used before."""
        if self.store is None:
            own = {it.id for it in batch.incidents}
            left = [_over(it) for it in self._open() if it.id not in own]
            batch = batch._replace(incidents=(*left, *batch.incidents))
        if self.store is None:
            return False
        try:
            self.state = HistoryState("on", bytes=self.store.write(batch, self._clock().wall))
            if self._patience() == 0.0:
                self._news_at = self._clock().monotonic
                self._keeper.know(self.store.news())
        except DatabaseError as error:
            self._failed(error)
            return False
        return True


def _over(it: Incident) -> Incident:
    """An incident that a database which is opened late holds as open, and this collector has never watched."""
    return structs.replace(it, closed_at=it.seen_at, closed_because="ended_while_down")
