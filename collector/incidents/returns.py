"""Faults that were over and are there again within a week: the ends of earlier faults by their place. No clock, no
file."""

from __future__ import annotations

from collections.abc import Hashable

from laggard.collector.incidents.incident import WEEK_SECONDS, Return

MAX_PLACES = 16_384
"""The most places whose ends are remembered, the last ones."""

MAX_ENDS = 64
"""The most ends of one place."""


class Ends:
    """The ends of faults, by place, in Unix seconds."""

    def __init__(self) -> None:
        self._ends: dict[Hashable, list[float]] = {}

    def note(self, place: Hashable, ended_at: float) -> None:
        ends = self._ends.pop(place, [])
        known = ended_at in ends  # told of by another collector, too
        self._ends[place] = ends if known else [*ends, ended_at][-MAX_ENDS:]
        while len(self._ends) > MAX_PLACES:
            del self._ends[next(iter(self._ends))]

    def before(self, place: Hashable, began_at: float) -> Return | None:
        """The earlier ones of what began at the place then; None where there were none within the week. An end that
        lies after the begin is of a clock that was set back: it was before, whatever the clock says."""
        ends = [min(end, began_at) for end in self._ends.get(place, ()) if began_at - end <= WEEK_SECONDS]
        return Return(len(ends), max(ends)) if ends else None
