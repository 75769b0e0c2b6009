"""A node's clock beside the collector's. The ends of ranks are told in their node's Unix time, and who of several
nodes died first can only be said on one clock."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from laggard.wire.ranks import RankRow, RanksDocument

TOLERATED_SECONDS: Final = 0.5
"""The tolerated difference of clocks, which locate/hang/deaths.py allows between nodes too: chrony and NTP keep clocks
far closer."""


class NodeClock:
    """`ahead_seconds`: by how much the node's clock is ahead of the collector's, 0 where the two agree within what an
    answer can tell; `uncertain_seconds`: by how much that may be wrong, to either side."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0
        self.uncertain_seconds = 0.0

    def observe(self, at: float, asked_at: float, answered_at: float) -> None:
        """`at` is the node's Unix time while it answered; it was asked, and the answer was there, at these Unix times
        of the collector. What is known already stays while it explains the answer, so that ends do not wander."""
        for known in (0.0, self.ahead_seconds):
            if asked_at - TOLERATED_SECONDS <= at - known <= answered_at + TOLERATED_SECONDS:
                self.ahead_seconds = known
                self.uncertain_seconds = self.uncertain_seconds if known else 0.0
                return
        self.ahead_seconds = at - (asked_at + answered_at) / 2
        self.uncertain_seconds = (answered_at - asked_at) / 2

    def on_ours(self, answer: RanksDocument) -> RanksDocument:
        """The answer with the ends of its ranks in the collector's Unix time."""
        if not self.ahead_seconds:
            return answer
        return structs.replace(answer, ranks=tuple(map(self._row, answer.ranks)))

    def _row(self, row: RankRow) -> RankRow:
        end = row.end
        if end is None:
            return row
        at = max(0.0, end.at_seconds - self.ahead_seconds + self.uncertain_seconds)
        uncertain = end.uncertain_seconds + 2 * self.uncertain_seconds
        return structs.replace(row, end=structs.replace(end, at_seconds=at, uncertain_seconds=uncertain))
