"""Medians of a rank's peers over S steps and R ranks, without sorting everything again for each rank. Pure.

nan stands for a rank that has no row for a step, and is left out. All results are exact: the same numbers as numpy's
own medians over copies without the rank, in time linear in the ranks and with little memory besides the arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.job_timings import Floats

BLOCK = 8192
"""How many ranks are computed at once: intermediate arrays over steps and ranks are at most this wide."""


def blocks(count: int) -> Iterator[slice]:
    """Slices of at most BLOCK ranks that together cover `count` ranks."""
    yield from (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


@dataclasses.dataclass(frozen=True)
class LeaveOneOutMedian:
    """The values in the middle of each row: from them follows the median of the row without any one of its entries."""

    count: NDArray[np.int64]  # [S]: how many values are not nan
    below: Floats  # [S]: the value before the centre
    centre: Floats  # [S]: the median, the lower of the two where the count is even
    above: Floats  # [S]: the value after the centre

    @property
    def median(self) -> Floats:
        """[S]: the median of each row; nan where the row has no values."""
        return np.where(self.count % 2 == 1, self.centre, (self.centre + self.above) / 2)

    def excluding(self, values: Floats) -> Floats:
        """[S, K]: for each of `values` [S, K], which are entries of the rows, the median of its row without it; nan
        where no other value is left."""
        below, centre, above = self.below[:, None], self.centre[:, None], self.above[:, None]
        odd = np.where(values < centre, (centre + above) / 2, (below + centre) / 2)
        odd = np.where(values == centre, (below + above) / 2, odd)
        result: Floats = np.where((self.count % 2 == 1)[:, None], odd, np.where(values <= centre, above, centre))
        result[self.count < 2] = np.nan
        return result


def row_medians(values: Floats) -> LeaveOneOutMedian:
    """The medians of the rows of `values` [S, R]. Selecting three values of a row is linear, sorting it is not."""
    counts = np.zeros(len(values), dtype=np.int64)
    picked = np.full((len(values), 3), np.nan, dtype=values.dtype)
    for number, row in enumerate(values):
        known = row[np.isfinite(row)]  # a copy in any case
        counts[number] = len(known)
        if len(known):
            middle = (len(known) - 1) // 2
            places = np.clip((middle - 1, middle, middle + 1), 0, len(known) - 1)
            known.partition(np.unique(places))
            picked[number] = known[places]
    return LeaveOneOutMedian(counts, *picked.T)


def median_over_steps(values: Floats) -> Floats:
    """[R]: each rank's median of `values` [S, R]; nan where the rank has no values."""
    result = np.full(values.shape[1], np.nan, dtype=values.dtype)
    for block in blocks(values.shape[1]):
        ordered = np.sort(values[:, block].T, axis=1)  # nan last
        count = np.isfinite(ordered).sum(axis=1)
        ranks = np.arange(len(ordered))
        low, high = (
            ordered[ranks, np.maximum(count - 1, 0) // 2],
            ordered[ranks, np.minimum(count // 2, len(values) - 1)],
        )
        result[block] = np.where(count % 2 == 1, low, (low + high) / 2)
    return result


class PeerPool:
    """All values of [T, R] as one collection. Its median without one rank's T values lies within T places of its
    middle: only that stretch is kept, sorted."""

    def __init__(self, values: Floats) -> None:
        steps = len(values)
        flat = values[np.isfinite(values)]  # a copy, flat
        self._count = len(flat)
        self._first = max(0, (self._count - steps - 1) // 2)
        last = min(self._count - 1, self._count // 2 + steps)
        if self._count:
            flat.partition(sorted({self._first, last}))
        self._stretch = np.sort(flat[self._first : last + 1])

    def median_excluding(self, excluded: Floats) -> float:
        """The median without `excluded` [T], one rank's values, which are in the pool; nan where none is left."""
        gone = np.sort(excluded[np.isfinite(excluded)])
        left = self._count - len(gone)
        if left == 0:
            return float("nan")
        # Equal values cannot be told apart: of those at the stretch's ends as many as possible are taken from within.
        repeated = np.arange(len(gone)) - np.searchsorted(gone, gone, "left")
        places = np.searchsorted(self._stretch, gone, "left") + repeated
        within = places < np.searchsorted(self._stretch, gone, "right")
        before = int((~within & (gone <= self._stretch[0])).sum())
        stretch = np.delete(self._stretch, places[within])
        start = self._first - before
        low, high = stretch[(left - 1) // 2 - start], stretch[left // 2 - start]
        return float(low if left % 2 == 1 else (low + high) / 2)
