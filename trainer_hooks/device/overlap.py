"""Collectives on other streams than the main one: when they ran, and how much of that time the main stream waited for
them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from laggard.trainer_hooks.record.events import Launch

_MAX_COLLECTIVES: Final = 1024  # collectives that are kept, because the main stream may still wait for them


class OverlappedCollective:
    """One collective; times on the host's clock, in nanoseconds. `exposed`: how much the main stream waited for it."""

    __slots__ = ("arrival", "end", "exposed", "launch")

    def __init__(self, launch: Launch, arrival: int, end: int) -> None:
        self.launch: Launch | None = launch  # None once it is logged
        self.arrival = arrival
        self.end = end
        self.exposed = 0


class OverlappedCollectives:
    """The last of them. `log` takes launch, arrival, end, waited; `waited` takes nanoseconds of the present segment."""

    def __init__(self, log: Callable[[Launch, int, int, int], None], waited: Callable[[int], None]) -> None:
        self._log = log
        self._waited = waited
        self._kept: deque[OverlappedCollective] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, collective: OverlappedCollective) -> None:
        self._kept.append(collective)
        if len(self._kept) > _MAX_COLLECTIVES:
            self._log_once(self._kept.popleft())

    def main_stream_waited(self, began: int, ended: int) -> None:
        """The main stream waited for other streams: as far as a collective ran meanwhile, it waited for that one."""
        covered = began  # until where the wait is accounted for
        for collective in sorted(self._kept, key=lambda each: each.arrival):
            start, end = max(collective.arrival, began), min(collective.end, ended)
            if end > start:
                collective.exposed += end - start
            if end > max(start, covered):
                self._waited(end - max(start, covered))
                covered = end

    def log_all(self) -> None:
        for collective in self._kept:
            self._log_once(collective)

    def forget_ended(self, now: int) -> None:
        """Forgets those that were over by `now`: no later wait of the main stream is for them."""
        while self._kept and self._kept[0].end <= now:
            self._kept.popleft()

    def correct(self, by: int) -> None:
        """Adds `by` to their times."""
        for collective in self._kept:
            collective.arrival += by
            collective.end += by

    def clear(self) -> None:
        self._kept.clear()

    def _log_once(self, collective: OverlappedCollective) -> None:
        launch, collective.launch = collective.launch, None
        if launch is not None:
            self._log(launch, collective.arrival, collective.end, collective.exposed)
