"""The times of one rank, on its own clock, as intervals that do not overlap: its work, and its waits. Arrays. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Intervals [I] in order of time, of which no two overlap."""

    starts: Times
    ends: Times
    before: Times  # how long all before each of them are together

    @classmethod
    def of(cls, starts: Times, ends: Times) -> Intervals:
        """`starts` and `ends` [N], in any order: those that overlap or touch are one."""
        order = np.argsort(starts, kind="stable")
        starts, latest = starts[order], np.maximum.accumulate(ends[order])
        apart = np.ones(len(starts), np.bool_)
        apart[1:] = starts[1:] > latest[:-1]
        first = np.flatnonzero(apart)
        starts, ends = starts[first], latest[np.append(first[1:], len(latest)) - 1] if len(latest) else latest
        return cls(starts, ends, np.concatenate(([0.0], np.cumsum(ends - starts)[:-1])) if len(starts) else starts)

    def until(self, times: Times) -> Times:
        """The length of the intervals that had passed by each of `times`."""
        if not len(self.starts):
            return np.zeros(len(times))
        place = np.searchsorted(self.starts, times, "right") - 1
        within = np.minimum(times, self.ends[place]) - self.starts[place]
        return np.where(place < 0, 0.0, self.before[place] + within)

    def within(self, starts: Times, ends: Times) -> Times:
        """The length of the intervals that lies between each of `starts` and of `ends`."""
        return self.until(ends) - self.until(starts)


def waits(starts: Times, ends: Times, waited: Times) -> Intervals:
    """The intervals in which a rank waited: sends and receives that it waits for together are one wait.

    `starts`, `ends` and `waited` [C] are of its collectives; nan where one never ended, or nothing is known of how long
    it waited. A wait is over when its collective ends, and began `waited` before; where that is not known, when the
    collective began.
    """
    finished = np.isfinite(ends)
    lengths = np.where(np.isnan(waited), ends - starts, waited)[finished]
    return Intervals.of(ends[finished] - lengths, ends[finished])
