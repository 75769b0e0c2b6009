"""The time for which each node has been in its state without a break."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Streak(NamedTuple):
    status: str
    since: float


class Streaks:
    """Times in monotonic seconds. A restarted controller begins to count anew: it acts later, never sooner."""

    def __init__(self) -> None:
        self._held: dict[str, Streak] = {}

    def update(self, statuses: Mapping[str, str], now: float) -> None:
        """Takes the nodes' statuses now; a node that is not among them is forgotten."""
        self._held = {
            name: held if (held := self._held.get(name)) and held.status == status else Streak(status, now)
            for name, status in statuses.items()
        }

    def lasts(self, name: str, status: str, now: float) -> float:
        """The seconds for which the node has been in `status`; negative where it is not."""
        held = self._held.get(name)
        return now - held.since if held and held.status == status else -1.0
