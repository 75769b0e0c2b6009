"""Collectives that are launched and that nobody has waited for yet, by the work (torch's handle) that stands for them.

A work is known by its id(). It is not held: it holds its tensors, and a script may poll it with is_completed() and drop
them. A work that was dropped without a wait leaves its id() to another. One work can stand for all collectives of a
batch. Pure bookkeeping, the same for collectives that the host's clock times and for those that a device times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from laggard.trainer_hooks.record.events import issued_at, lane_log_of, step_of

_OTHERS_LIMIT: Final = 4096  # works launched and not waited for, before the oldest are given up

Entry = TypeVar("Entry", bound=tuple[Any, ...])
"""A pending collective: a Launch, or a tuple that begins as a Launch does."""


class PendingWork(Generic[Entry]):
    """The pending collectives of one process. `never_ended` is called with those that were never seen to end.

    `key`, `newest`, `others` and `batches` belong to the hot path: the id() of the work launched last and its
    collective (`key` is 0 once somebody has waited for it, as for most before the next is launched), the others by the
    id() of their works, and the batches by the id() of the one work that stands for each. Before a work becomes the
    newest, whoever puts it there calls demote_newest() if there is one.
    """

    def __init__(self, never_ended: Callable[[Sequence[Entry]], None]) -> None:
        self.key = 0
        self.newest: Entry | None = None
        self.others: dict[int, Entry] = {}
        self.batches: dict[int, list[Entry]] = {}
        self.dropped: list[Entry] = []
        self._batch_began: int | None = None
        self._never_ended = never_ended

    def __len__(self) -> int:
        return (self.key != 0) + len(self.others) + len(self.batches) + len(self.dropped)

    def __iter__(self) -> Iterator[Entry]:
        self.demote_newest()
        return itertools.chain(self.dropped, self.others.values(), *self.batches.values())

    def add(self, work: object, entry: Entry) -> None:
        """`work` was launched and stands for `entry`."""
        if self.key:
            self.demote_newest(work)
        self.key, self.newest = id(work), entry

    def get(self, work: object) -> Entry | None:
        """The collective that a work stands for, or the last of a batch. None: the work is not among these."""
        if id(work) == self.key:
            return self.newest
        return self.batches.get(id(work), [self.others.get(id(work))])[-1]

    def pop(self, work: object) -> Entry | None:
        """Removes and returns the collective of a work that somebody waits for. None: the work is not among these."""
        if id(work) != self.key:
            return self.others.pop(id(work), None)
        self.key = 0
        return self.newest

    def demote_newest(self, successor: object = None) -> None:
        """Puts the newest work among the others. Another one with its id() was dropped, and so was one with the id() of
        `successor`, which has just been made."""
        if self.key:
            if self.key in self.others:
                self.dropped.append(self.others[self.key])
            self.others[self.key] = self.newest  # type: ignore[assignment]
            self.key = 0
        if id(successor) in self.others:
            self.dropped.append(self.others.pop(id(successor)))

    def take(self, since: int, logs: Collection[int] | None = None) -> list[Entry]:
        """Removes and returns the collectives issued at or after `since`, in that order. `logs`: only those of the lane
        logs with these id()s."""

        self.demote_newest()

        def chosen(entry: Entry) -> bool:
            return issued_at(entry) >= since and (logs is None or id(lane_log_of(entry)) in logs)

        taken = [entry for entry in self.dropped if chosen(entry)]
        self.dropped = [entry for entry in self.dropped if not chosen(entry)]
        taken += [self.others.pop(key) for key in [key for key, entry in self.others.items() if chosen(entry)]]
        return sorted(taken, key=issued_at)

    def begin_batch(self, now: int) -> None:
        """Begins a batch: what is launched from here on is waited for together."""
        self._batch_began = now

    def add_to_batch(self, entry: Entry) -> bool:
        """Adds the collective of a call that gave no work to the batch that is being made: it is over with the batch.
        Returns False where no batch is being made."""
        if self._batch_began is not None:
            self.dropped.append(entry)
        return self._batch_began is not None

    def end_batch(self, key: int | None) -> list[Entry]:
        """The work with the id() `key` stands for the batch. None: there is nothing to wait for, and the collectives
        returned are over."""
        if self._batch_began is None:
            return []
        batch, self._batch_began = self.take(self._batch_began), None
        if key is None:
            return batch
        if batch:
            self.batches[key] = batch
        return []

    def expire(self, step: int) -> None:
        """Gives up the collectives launched before `step`, which ends now, and those beyond the limit. Nobody waited
        for them by the end of the step after their launch, so they were never seen to end."""
        self.demote_newest()
        stale = [key for key, entry in self.others.items() if step_of(entry) < step]
        stale += list(self.others)[: max(0, len(self.others) - _OTHERS_LIMIT)]
        expired = [self.others.pop(key) for key in dict.fromkeys(stale)] + self.dropped
        self.dropped = []
        for key in [key for key, batch in self.batches.items() if step_of(batch[-1]) < step]:
            expired += self.batches.pop(key)
        if expired:
            self._never_ended(expired)
