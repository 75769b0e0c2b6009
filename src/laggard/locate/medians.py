"""Medians over steps and over ranks, in which nan stands for what is not known. Pure.

By ways that import less than numpy's own: np.unique and np.median load numpy.ma, and the module statistics loads
random. That was a tenth of the time of a start of `laggard locate`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""Numbers of any precision: the arrays of the largest jobs are in single precision."""

MAD_TO_SIGMA = 1.4826
"""A standard deviation over the median absolute deviation, for normal data."""


def as_slice(places: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """The same places, as a slice where they follow one another, as they mostly do: then nothing is copied."""
    follow = len(places) and places[-1] - places[0] == len(places) - 1 and (np.diff(places) == 1).all()
    return slice(int(places[0]), int(places[-1]) + 1) if follow else places


def median_over_steps(values: Floats) -> Floats:
    """[R]: each rank's median of `values` [S, R]; nan where the rank has no values."""
    return last_axis_median(np.ascontiguousarray(values.T))


def last_axis_median(values: Floats) -> Floats:
    """The medians of `values` [..., N] over its last axis; nan where no value is known."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan, dtype=values.dtype)
    ordered, count = _ordered(values)
    result: Floats = (_at(ordered, (count - 1) // 2) + _at(ordered, count // 2))[..., 0] / 2
    return result


def _ordered(values: Floats) -> tuple[Floats, NDArray[np.intp] | int]:
    """`values` [..., N], ascending on the last axis with nan last, and how many of each are known [..., 1]: one number
    where all are, as of most steps of most jobs."""
    ordered = np.sort(values, axis=-1)
    if np.isfinite(ordered[..., -1]).all() and np.isfinite(ordered[..., 0]).all():
        return ordered, values.shape[-1]
    return ordered, np.isfinite(ordered).sum(axis=-1, keepdims=True)


def _at(ordered: Floats, place: NDArray[np.intp] | int) -> Floats:
    """[..., 1]: what stands at `place`, or at the end where that is beyond it. One place for all is read in a third of
    the time."""
    last = ordered.shape[-1] - 1
    if isinstance(place, int):
        return ordered[..., min(max(place, 0), last), None]
    found: Floats = np.take_along_axis(ordered, np.clip(place, 0, last), -1)
    return found


def over_phases(seconds: Floats) -> Floats:
    """[S, R]: the sum of `seconds` [S, R, P], added up phase by phase, so that it is the same to the bit whatever the
    order in memory."""
    total: Floats = np.zeros(seconds.shape[:2], seconds.dtype)
    for phase in range(seconds.shape[2]):
        total += seconds[:, :, phase]
    return total


def median(values: Floats) -> float:
    """The median of the known values; nan where there is none."""
    known = values[np.isfinite(values)]
    return middle(known) if len(known) else float("nan")


def deviation(values: Floats) -> float:
    """The median absolute deviation of the known values; 0.0 where there are fewer than two."""
    known = values[np.isfinite(values)]
    return middle(np.abs(known - middle(known))) if len(known) > 1 else 0.0


def others_median(values: Floats) -> Floats:
    """[..., N]: for each of `values` [..., N] the median of the others on the last axis; for nan, that of all others;
    nan where no other value is known."""
    ordered, count = _ordered(values)

    def without(place: NDArray[np.intp] | int) -> Floats:
        """What stands at `place` where the value itself is left out: what is not below it moves up by one."""
        here = _at(ordered, place)
        moved: Floats = np.where(values > here, here, _at(ordered, place + 1))
        return moved

    result: Floats = (without((count - 2) // 2) + without((count - 1) // 2)) / 2
    if isinstance(count, int):
        return result if count > 1 else np.full_like(values, np.nan)
    known = np.isfinite(values)
    result = np.where(known, result, last_axis_median(values)[..., None])
    return np.where(count - known > 0, result, np.nan)


def distinct(values: NDArray[Any], axis: int | None = None) -> NDArray[Any]:
    """The distinct values, ascending, or on `axis` the distinct rows: np.unique(values). Where np.unique is asked for
    the counts as well, it loads nothing."""
    return np.unique(values, axis=axis, return_counts=True)[0]


def numbered(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """[N]: a number for each of `keys` [N], from 0, the same for equal ones."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def least_of(kinds: NDArray[np.integer[Any]], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """[count]: the least of the `values` [N] of each of so many kinds, of which `kinds` [N] are numbers; infinite of
    none."""
    found = np.full(count, np.inf)
    np.minimum.at(found, kinds, values)
    return found


def middle(values: NDArray[Any] | Sequence[float]) -> float:
    """The median of at least one value; nan where one is not known. It takes a tenth of np.median's time for the steps
    of one rank."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    if np.isnan(ordered[-1]):  # nan is last
        return float("nan")
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)
