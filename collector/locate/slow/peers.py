"""Medians of a rank's peers over S steps and R ranks, without sorting all of it again for each rank. nan: not seen.

All of it is exact: the same numbers as numpy's own medians over copies with the rank left out, in time linear in the
ranks and with little memory besides the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

BLOCK = 8192
"""Ranks looked at at once: what is computed for each step and rank on the way is at most this wide."""


def blocks(count: int) -> Iterator[slice]:
    yield from (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


class Middle(NamedTuple):
    """Of each row its values in the middle: with them the median of the row without any one of its entries is known."""

    seen: NDArray[np.int64]  # [S]: how many values are no nan
    below: Floats  # [S]: the value before the centre
    centre: Floats  # [S]: the median, the lower of the two where the count is even
    above: Floats  # [S]: the value after the centre

    @property
    def median(self) -> Floats:
        """Of each row; nan where nothing was seen."""
        return np.where(self.seen % 2 == 1, self.centre, (self.centre + self.above) / 2)

    def without(self, values: Floats) -> Floats:
        """For entries [S, K] of the rows the median of the row without each; nan where no other is left."""
        below, centre, above = self.below[:, None], self.centre[:, None], self.above[:, None]
        odd = np.where(values < centre, (centre + above) / 2, (below + centre) / 2)
        odd = np.where(values == centre, (below + above) / 2, odd)
        result: Floats = np.where((self.seen % 2 == 1)[:, None], odd, np.where(values <= centre, above, centre))
        result[self.seen < 2] = np.nan
        return result


def middle_of_rows(values: Floats) -> Middle:
    """Of [S, R], row by row: selecting three values is linear, sorting is not."""
    count = np.zeros(len(values), dtype=np.int64)
    picked = np.full((len(values), 3), np.nan, dtype=values.dtype)
    for row, of_row in enumerate(values):
        seen = of_row[np.isfinite(of_row)]  # a copy in any case
        count[row] = len(seen)
        if len(seen):
            middle = (len(seen) - 1) // 2
            places = np.clip((middle - 1, middle, middle + 1), 0, len(seen) - 1)
            seen.partition(np.unique(places))
            picked[row] = seen[places]
    return Middle(count, *picked.T)


def peers_median(values: Floats) -> Floats:
    """For each entry of [S, R] the median of the other ranks' in its row; nan stands for a rank that was not seen."""
    return middle_of_rows(values).without(values)


def median_over_steps(values: Floats) -> Floats:
    """Of [S, R] each rank's median; nan where it was not seen."""
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


class Pool:
    """All values of [T, R] as one heap. The median without one rank's T values lies within T places of the middle: that
    stretch alone is kept, sorted."""

    def __init__(self, values: Floats) -> None:
        steps = len(values)
        flat = values[np.isfinite(values)]  # a copy, flat
        self._count = len(flat)
        self._first = max(0, (self._count - steps - 1) // 2)
        last = min(self._count - 1, self._count // 2 + steps)
        if self._count:
            flat.partition(sorted({self._first, last}))
        self._stretch = np.sort(flat[self._first : last + 1])

    def median_without(self, removed: Floats) -> float:
        """`removed` [T]: one rank's values, which are in the pool."""
        gone = np.sort(removed[np.isfinite(removed)])
        left = self._count - len(gone)
        if left == 0:
            return float("nan")
        # Equal values are all alike: of those at the stretch's ends as many as possible are taken from within it.
        repeated = np.arange(len(gone)) - np.searchsorted(gone, gone, "left")
        places = np.searchsorted(self._stretch, gone, "left") + repeated
        within = places < np.searchsorted(self._stretch, gone, "right")
        before = int((~within & (gone <= self._stretch[0])).sum())
        stretch = np.delete(self._stretch, places[within])
        start = self._first - before
        low, high = stretch[(left - 1) // 2 - start], stretch[left // 2 - start]
        return float(low if left % 2 == 1 else (low + high) / 2)
