"""One place that says where agents are, and what holds while it cannot be asked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from laggard.collector.node_labels import NodeLabels
from laggard.collector.scrape.targets import Target

_NONE: Final[Mapping[Target, NodeLabels]] = MappingProxyType({})


class Unanswered(Exception):
    """The place cannot be read now. The text is one line: what is wrong, and with what."""


class Answer(NamedTuple):
    """The agents that a place names now. `note` says what in it could not be used; empty: nothing.
    `labels`: of the agents whose nodes it gives some."""

    targets: tuple[Target, ...] = ()
    note: str = ""
    labels: Mapping[Target, NodeLabels] = _NONE


class Place(Protocol):
    def read(self) -> Answer:
        """May take seconds. Raises Unanswered."""


class Source:
    """A place, and its last answer. While it does not answer, that one holds, for `keep_seconds`: addresses are given
    to other machines, so an old list is not believed for ever."""

    def __init__(self, place: Place, keep_seconds: float) -> None:
        self.answer = Answer()
        self._place = place
        self._keep_seconds = keep_seconds
        self._answered_at: float | None = None

    def look(self, now: float) -> None:
        """Reads the place at `now`, in monotonic seconds."""
        try:
            self.answer, self._answered_at = self._place.read(), now
        except Unanswered as error:
            self.answer = self._last(str(error), now)

    def _last(self, failure: str, now: float) -> Answer:
        if self._answered_at is None:
            return Answer((), failure)
        age = now - self._answered_at
        if age > self._keep_seconds:
            return Answer((), f"{failure}; what it said {age:.0f} s ago holds no longer")
        return self.answer._replace(note=f"{failure}; what it said {age:.0f} s ago holds")
