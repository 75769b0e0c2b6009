"""Medians over steps and over ranks, in which nan stands for what is not known. Pure.

By ways that import less than numpy's own: np.unique and np.median load numpy.ma, and the module statistics loads
random. That was a tenth of the time of a start of `laggard locate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""Numbers of any precision: the arrays of the largest jobs are in single precision."""

MAD_TO_SIGMA = 1.4826
"""A standard deviation over the median absolute deviation, for normal data."""

MEDIAN_ERROR = 1.2533
"""The standard error of a median over that of a mean, for normal data."""

BLOCK = 8192
"""The number of ranks that are computed at once: intermediate arrays over steps and ranks are at most this wide."""


def blocks(count: int) -> Iterator[slice]:
    """Slices of at most BLOCK ranks that together cover `count` ranks."""
    yield from (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


def median_over_steps(values: Floats) -> Floats:
    """[R]: each rank's median of `values` [S, R]; nan where the rank has no values."""
    result = np.full(values.shape[1], np.nan, dtype=values.dtype)
    for block in blocks(values.shape[1]):
        result[block] = last_axis_median(np.ascontiguousarray(values[:, block].T))
    return result


def last_axis_median(values: Floats) -> Floats:
    """The medians of `values` [..., N] over its last axis; nan where no value is known."""
    size = values.shape[-1]
    if not size:
        return np.full(values.shape[:-1], np.nan, dtype=values.dtype)
    ordered = np.sort(values, axis=-1)  # nan last
    if _all_known(ordered):
        return _middle_of(ordered)
    count = np.isfinite(ordered).sum(axis=-1)
    low = np.take_along_axis(ordered, (np.maximum(count - 1, 0) // 2)[..., None], -1)[..., 0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, size - 1)[..., None], -1)[..., 0]
    result: Floats = np.where(count % 2 == 1, low, (low + high) / 2)
    return result


def _all_known(ordered: Floats) -> bool:
    """Whether all values are known, as they are of most steps of most jobs, by the ends of what is sorted."""
    return bool(np.isfinite(ordered[..., -1]).all() and np.isfinite(ordered[..., 0]).all())


def _middle_of(ordered: Floats) -> Floats:
    """The last_axis_median() of known values, sorted."""
    half, is_odd = divmod(ordered.shape[-1], 2)
    found: Floats = ordered[..., half].copy() if is_odd else (ordered[..., half - 1] + ordered[..., half]) / 2
    return found


def median(values: Floats) -> float:
    """The median of the known values; nan where there is none."""
    known = values[np.isfinite(values)]
    return middle(known) if len(known) else float("nan")


def deviation(values: Floats) -> float:
    """The median absolute deviation of the known values; 0.0 where there are fewer than two."""
    known = values[np.isfinite(values)]
    return middle(np.abs(known - middle(known))) if len(known) > 1 else 0.0


def deviations(values: Floats) -> Floats:
    """[R]: the deviation() of each column of `values` [S, R]."""
    found = median_over_steps(np.abs(values - median_over_steps(values)))
    return np.where(np.isfinite(values).sum(axis=0) > 1, found, 0.0)


def others_median(values: Floats) -> Floats:
    """[..., N]: for each of `values` [..., N] the median of the others on the last axis; for nan, that of all others;
    nan where no other value is known."""
    ordered = np.sort(values, axis=-1)  # nan last
    if values.shape[-1] > 1 and _all_known(ordered):
        return _others_of_known(values, ordered)
    count = np.isfinite(ordered).sum(axis=-1, keepdims=True)
    middle = np.maximum(count - 1, 0) // 2
    last = values.shape[-1] - 1

    def at(place: NDArray[np.intp]) -> Floats:
        found: Floats = np.take_along_axis(ordered, np.clip(place, 0, last), -1)
        return found

    centre, above = at(middle), at(np.minimum(middle + 1, np.maximum(count - 1, 0)))
    below = at(np.maximum(middle - 1, 0))
    odd = np.where(values < centre, (centre + above) / 2, (below + centre) / 2)
    odd = np.where(values == centre, (below + above) / 2, odd)
    even = np.where(values <= centre, above, centre)
    result: Floats = np.where(count % 2 == 1, odd, even)
    whole = np.where(count % 2 == 1, centre, (centre + above) / 2)
    known = np.isfinite(values)
    result = np.where(known, result, whole)
    return np.where(count - known > 0, result, np.nan)


def _others_of_known(values: Floats, ordered: Floats) -> Floats:
    """The others_median() of at least two known values, given sorted as well: in a third of the time."""
    half, is_odd = divmod(values.shape[-1], 2)
    if not is_odd:
        low, high = ordered[..., half - 1, None], ordered[..., half, None]
        of_even: Floats = np.where(values <= low, high, low)
        return of_even
    below, centre, above = (ordered[..., half + step, None] for step in (-1, 0, 1))
    beside = np.where(values < centre, (centre + above) / 2, (below + centre) / 2)
    of_odd: Floats = np.where(values == centre, (below + above) / 2, beside)
    return of_odd


def distinct(values: NDArray[Any], axis: int | None = None) -> NDArray[Any]:
    """The distinct values, ascending, or on `axis` the distinct rows: np.unique(values). Where np.unique is asked for
    the counts as well, it loads nothing."""
    return np.unique(values, axis=axis, return_counts=True)[0]


def middle(values: NDArray[Any] | Sequence[float]) -> float:
    """The median of at least one value; nan where one is not known. It takes a tenth of np.median's time for the steps
    of one rank."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    if np.isnan(ordered[-1]):  # nan is last
        return float("nan")
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)
