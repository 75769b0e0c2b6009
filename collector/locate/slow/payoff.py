"""What a job would gain if its slow ranks were as fast as their peers. Pure.

A step lasts as long as its busiest rank: the steps are replayed with that rank's busy time brought down to the median
of its peers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.job_timings import Floats
from laggard.collector.locate.slow.ranks import SlowRank
from laggard.collector.locate.slow.steps import Steps


def payoff(steps: Steps, slow: Sequence[SlowRank]) -> tuple[list[float], float]:
    """What fixing each slow rank saves, as a share of the step time, where they are fixed one after the other from the
    slowest on; and the step time over the step time with all of them fixed. `slow`: the slowest first."""
    longest, steps_after = _replayed(steps, slow)
    shares, saved_by_all = [], np.zeros(len(steps.duration))
    for rank, shorter in zip(slow, steps_after, strict=True):
        saved = np.clip(longest - shorter, 0, steps.duration)
        shares.append(float(np.median(saved[rank.since :] / steps.duration[rank.since :])))
        saved_by_all += saved
        longest = shorter
    first = min((rank.since for rank in slow), default=0)
    left = np.maximum(steps.duration - saved_by_all, 1e-9)[first:]
    return shares, float(np.median(steps.duration[first:]) / np.median(left))


def _replayed(steps: Steps, slow: Sequence[SlowRank]) -> tuple[Floats, Iterator[Floats]]:
    """The busiest rank's time in each step [S]; then the same with the first slow rank as fast as its peers from its
    onset on, with the first two, and so on."""
    columns = np.array([rank.column for rank in slow], dtype=np.int64)
    before = steps.busy[:, columns]
    after = np.minimum(before, steps.busy_medians.excluding(before))
    for place, rank in enumerate(slow):
        after[: rank.since, place] = before[: rank.since, place]
    return _longest(steps.busy, columns, before, after)


def _longest(
    busy: Floats, columns: NDArray[np.int64], before: Floats, after: Floats
) -> tuple[Floats, Iterator[Floats]]:
    """The largest of `busy` [S, R] in each step [S]; then the same with the first of `columns` brought from `before` to
    `after` (both [S, K]), with the first two, and so on."""
    others = np.ones(busy.shape[1], dtype=np.bool_)
    others[columns] = False
    rest = np.fmax.reduce(busy, axis=1, where=others[None, :], initial=-np.inf)
    fixed = np.fmax.accumulate(after, axis=1)
    unfixed = np.fmax.accumulate(before[:, ::-1], axis=1)[:, ::-1]
    count = len(columns)
    longest = np.fmax(rest, unfixed[:, 0]) if count else rest
    each = (np.fmax(rest, fixed[:, place]) for place in range(count))
    return longest, (
        np.fmax(now, unfixed[:, place + 1]) if place + 1 < count else now for place, now in enumerate(each)
    )
