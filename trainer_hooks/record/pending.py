"""Collectives that are launched and that nobody has waited for yet, by the work that stands for them.

The work launched last is held, until it is waited for or another is launched: telling by identity which one is waited
for costs least. The others are known by their id(), as long as somebody holds them: one that was dropped without a wait
leaves its id to another. Of a batch one work stands for all. Pure bookkeeping, on a host's and a device's clock alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

_OPEN_LIMIT: Final = 4096  # works launched and not waited for, before the oldest are given up

Entry = TypeVar("Entry", bound=tuple[Any, ...])
"""A collective under way. It begins with word, log, issued (host clock, nanoseconds), bytes, step."""

_LOG, _ISSUED, _STEP = 1, 2, 4


class Works(Generic[Entry]):
    """`give_up` is told of those that were never seen to end.

    `work`, `newest`, `open` and `batches` belong to the hot path: the work launched last, and its collective (None: it
    has been waited for, as most are before the next is launched); the others by their id(); and those for which one
    work stands together. Before a work is put there as the newest, make_room() where there is one.
    """

    def __init__(self, give_up: Callable[[Sequence[Entry]], None]) -> None:
        self.work: object | None = None
        self.newest: Entry | None = None
        self.open: dict[int, Entry] = {}
        self.batches: dict[int, list[Entry]] = {}
        self.dropped: list[Entry] = []
        self._batch_began: int | None = None
        self._give_up = give_up

    def __len__(self) -> int:
        return (self.work is not None) + len(self.open) + len(self.batches) + len(self.dropped)

    def __iter__(self) -> Iterator[Entry]:
        self.make_room()
        return itertools.chain(self.dropped, self.open.values(), *self.batches.values())

    def launch(self, work: object, entry: Entry) -> None:
        """`work` stands for `entry`."""
        if self.work is not None:
            self.make_room(work)
        self.work, self.newest = work, entry

    def pop(self, work: object) -> Entry | None:
        """Somebody waits for this work, or it is gone. None: it is none of ours."""
        if work is not self.work:
            return self.open.pop(id(work), None)
        self.work = None
        return self.newest

    def make_room(self, work: object = None) -> None:
        """The newest becomes one of the others. Another with its id() was dropped, as was one that has the id() of
        `work`, which is new."""
        if self.work is not None:
            if id(self.work) in self.open:
                self.dropped.append(self.open[id(self.work)])
            self.open[id(self.work)] = self.newest  # type: ignore[assignment]
            self.work = None
        if id(work) in self.open:
            self.dropped.append(self.open.pop(id(work)))

    def take(self, since: int, logs: Collection[int] | None = None) -> list[Entry]:
        """Those launched since, in order; of the logs with these id()s. From here on they are not ours."""

        self.make_room()

        def chosen(entry: Entry) -> bool:
            return entry[_ISSUED] >= since and (logs is None or id(entry[_LOG]) in logs)

        taken = [entry for entry in self.dropped if chosen(entry)]
        self.dropped = [entry for entry in self.dropped if not chosen(entry)]
        taken += [self.open.pop(key) for key in [key for key, entry in self.open.items() if chosen(entry)]]
        return sorted(taken, key=lambda entry: entry[_ISSUED])

    def begin_batch(self, now: int) -> None:
        """What is launched from here on is waited for together."""
        self._batch_began = now

    def belongs_to_batch(self, entry: Entry) -> bool:
        """Whether a batch is being made; then a call that gave no work is over with the batch."""
        if self._batch_began is not None:
            self.dropped.append(entry)
        return self._batch_began is not None

    def end_batch(self, key: int | None) -> list[Entry]:
        """The work `key` stands for the batch. None: there is nothing to wait for, and these are over."""
        if self._batch_began is None:
            return []
        batch, self._batch_began = self.take(self._batch_began), None
        if key is None:
            return batch
        if batch:
            self.batches[key] = batch
        return []

    def give_up_old(self, step: int) -> None:
        """A work that nobody waited for by the end of the step after its launch was never seen to end. `step` ends."""
        self.make_room()
        stale = [key for key, entry in self.open.items() if entry[_STEP] < step]
        stale += list(self.open)[: max(0, len(self.open) - _OPEN_LIMIT)]
        gone = [self.open.pop(key) for key in dict.fromkeys(stale)] + self.dropped
        self.dropped = []
        for key in [key for key, batch in self.batches.items() if batch[-1][_STEP] < step]:
            gone += self.batches.pop(key)
        if gone:
            self._give_up(gone)
