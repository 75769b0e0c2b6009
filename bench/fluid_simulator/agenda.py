"""The queue of events of one simulation: what will happen, and when."""

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Events by their time; those of one time in the order in which they were put down. `now`: seconds, the time of
    the event that happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def number(self) -> int:
        """A number that is higher than any given before."""
        self._count += 1
        return self._count

    def at(self, time: float, function: Callable[[Any], None], argument: Any) -> None:
        """Calls `function(argument)` at `time`."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, function, argument))

    def run(self) -> None:
        """Lets everything happen, until nothing is left."""
        events = self._events
        while events:
            self.now, _, function, argument = heapq.heappop(events)
            function(argument)
