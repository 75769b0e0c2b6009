"""The number of collectives of a process group that the hooks have seen, as torch itself counts them."""

from __future__ import annotations

from laggard.rankfile import Lane
from laggard.rankfile.layout import SEQUENCE_MASK
from laggard.trainer_hooks.record.events import LaneLog


class GroupCounts:
    """The counts of one process group's name. A group that is made later may have the name of one that ended: its
    collectives are counted on.

    `lanes`: the group's lanes with their logs, by the id() of the log. `ended_at`: when the group that had the name
    before ended, on the recorder's clock; 0: there was none.
    """

    def __init__(self) -> None:
        self.lanes: dict[int, tuple[Lane, LaneLog]] = {}
        self.ended_at = 0
        self._when_ended = {False: 0, True: 0}
        self._coalesced = 0  # collectives of batches, less one for each batch
        self._before_batch = 0

    def launched(self, pairs: bool) -> int:
        """The number of collectives that were launched, where all of a batch are one. `pairs`: with sends and
        receives."""
        count = -self._coalesced
        for lane, lane_log in self.lanes.values():
            if pairs or (lane.peer < 0 and lane.op != "recv"):
                count += lane_log.last & SEQUENCE_MASK
        return count

    def when_ended(self, pairs: bool) -> int:
        """Returns launched() as it was at `ended_at`."""
        return self._when_ended[pairs]

    def begin_batch(self) -> None:
        """Begins a batch, which is what the group launches from here on. NCCL counts it once, with its first collective
        (ProcessGroupNCCL.cpp, `collective`); gloo has no batches."""
        self._before_batch = self.launched(pairs=False)

    def end_batch(self) -> None:
        """The batch is complete."""
        self._coalesced += max(0, self.launched(pairs=False) - self._before_batch - 1)

    def end(self, now: int) -> None:
        """The group is about to end."""
        self._when_ended = {pairs: self.launched(pairs) for pairs in (False, True)}
        self.ended_at = now
