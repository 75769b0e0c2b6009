"""Collectives beside the main stream: when they ran, and how much of that the main stream waited for. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from laggard.trainer_hooks.record.events import Launch

_LIMIT: Final = 1024  # that are kept, for a join may still have to do with them


class Flight:
    """One collective; times on the host's clock, in nanoseconds."""

    __slots__ = ("arrival", "end", "exposed", "launch")

    def __init__(self, launch: Launch, arrival: int, end: int) -> None:
        self.launch: Launch | None = launch  # None once it is logged
        self.arrival = arrival
        self.end = end
        self.exposed = 0


class Flights:
    """Those of late. `log` takes launch, arrival, end, waited; `waited`: nanoseconds of the present segment."""

    def __init__(self, log: Callable[[Launch, int, int, int], None], waited: Callable[[int], None]) -> None:
        self._log = log
        self._waited = waited
        self._kept: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, flight: Flight) -> None:
        self._kept.append(flight)
        if len(self._kept) > _LIMIT:
            self._log_one(self._kept.popleft())

    def join(self, began: int, ended: int) -> None:
        """The main stream waited for others: what of it falls into a flight was waiting for that one."""
        covered = began  # until where the join is accounted for
        for flight in sorted(self._kept, key=lambda each: each.arrival):
            start, end = max(flight.arrival, began), min(flight.end, ended)
            if end > start:
                flight.exposed += end - start
            if end > max(start, covered):
                self._waited(end - max(start, covered))
                covered = end

    def log_all(self) -> None:
        for flight in self._kept:
            self._log_one(flight)

    def forget(self, now: int) -> None:
        """No join from here on has to do with those that were over by `now`."""
        while self._kept and self._kept[0].end <= now:
            self._kept.popleft()

    def shift(self, by: int) -> None:
        for flight in self._kept:
            flight.arrival += by
            flight.end += by

    def clear(self) -> None:
        self._kept.clear()

    def _log_one(self, flight: Flight) -> None:
        launch, flight.launch = flight.launch, None
        if launch is not None:
            self._log(launch, flight.arrival, flight.end, flight.exposed)
