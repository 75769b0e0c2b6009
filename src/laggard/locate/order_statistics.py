"""Distinct values and medians as numpy's own, by ways that import less: np.unique and np.median load numpy.ma, and the
module statistics loads random. That was a tenth of the time of a start of `laggard locate`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def known_middle(values: NDArray[Any]) -> float:
    """The median of the values that are known; nan where none is."""
    known = values[np.isfinite(values)]
    return middle(known) if len(known) else float("nan")
