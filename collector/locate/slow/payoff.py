"""What a job would gain if its slow ranks were as fast as their peers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.slow.peers import Floats
from laggard.collector.locate.slow.ranks import Slow
from laggard.collector.locate.slow.steps import Steps


def savings(steps: Steps, slow: Sequence[Slow]) -> tuple[list[float], float]:
    """What fixing each saves, as a share of the step time, one after the other from the slowest; and the step time
    over that with all of them fixed. A step lasts as long as its busiest rank: replayed with that rank's busy time
    brought down to its peers' median."""
    longest, steps_after = _replayed(steps, slow)
    shares, whole = [], np.zeros(len(steps.duration))
    for each, shorter in zip(slow, steps_after, strict=True):
        saved = np.clip(longest - shorter, 0, steps.duration)
        shares.append(float(np.median(saved[each.since :] / steps.duration[each.since :])))
        whole += saved
        longest = shorter
    first = min((each.since for each in slow), default=0)
    left = np.maximum(steps.duration - whole, 1e-9)[first:]
    return shares, float(np.median(steps.duration[first:]) / np.median(left))


def _replayed(steps: Steps, slow: Sequence[Slow]) -> tuple[Floats, Iterator[Floats]]:
    """The busiest rank's time in each step [S], and that with the first of the slow as fast as its peers from its onset
    on, with the first two, and so on."""
    columns = np.array([each.column for each in slow], dtype=np.int64)
    before = steps.busy[:, columns]
    after = np.minimum(before, steps.middle.without(before))
    for place, each in enumerate(slow):
        after[: each.since, place] = before[: each.since, place]
    return _longest(steps.busy, columns, before, after)


def _longest(
    busy: Floats, columns: NDArray[np.int64], before: Floats, after: Floats
) -> tuple[Floats, Iterator[Floats]]:
    """The busiest rank's time in each step [S], and that with the first of `columns` brought from `before` to `after`,
    with the first two, and so on."""
    others = np.ones(busy.shape[1], dtype=np.bool_)
    others[columns] = False
    rest = np.fmax.reduce(busy, axis=1, where=others[None, :], initial=-np.inf)
    done = np.fmax.accumulate(after, axis=1)
    to_do = np.fmax.accumulate(before[:, ::-1], axis=1)[:, ::-1]
    count = len(columns)
    longest = np.fmax(rest, to_do[:, 0]) if count else rest
    each = (np.fmax(rest, done[:, place]) for place in range(count))
    return longest, (np.fmax(now, to_do[:, place + 1]) if place + 1 < count else now for place, now in enumerate(each))
