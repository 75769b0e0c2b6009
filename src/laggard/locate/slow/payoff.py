"""The gain of a job if its slow ranks were as fast as their peers. Pure.

Where the collectives are recorded, the last steps are replayed (replay.py). Time that the replay does not explain, such
as that until the kernel lets a rank go on after a collective, is taken to stay as it is. Where nothing can be replayed,
a step is taken to last as long as its busiest rank, with a culprit's busy time brought down to its peers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.slow.ranks import Slow
from laggard.locate.slow.replay import TOLERANCE, Replay
from laggard.locate.slow.steps import Steps

MAX_REPLAYED = 4
"""The most culprits with which the steps are replayed: each takes two more replays."""


class Payoff(NamedTuple):
    """The saving of fixing each culprit, as a share of the step time, and the step time over the step time with all of
    them fixed. `replayed`: what waits for what was known."""

    saved: list[float]
    ratio: float
    replayed: bool = False


def payoff(timings: JobTimings, steps: Steps, slow: Sequence[Slow]) -> Payoff:
    """What fixing the culprits gains. Of several, each is worth the mean of what fixing it saves before and after all
    others are fixed: of two that are equally slow neither saves anything alone, and each half of what both save."""
    if not slow:
        return Payoff([], 1.0)
    return _by_replay(timings, steps, slow) or _by_busiest(steps, slow)


def stalls_beside(steps: Steps, slow: Sequence[Slow]) -> NDArray[np.bool_]:
    """[S]: the steps that are left out of what fixing the culprits saves: stalls, but those of a culprit that is slow
    now and then, which are what it costs."""
    stalled = steps.stalled()
    for each in slow:
        if each.hits is not None:
            stalled &= ~each.hits
    return stalled


def _by_replay(timings: JobTimings, steps: Steps, slow: Sequence[Slow]) -> Payoff | None:
    """The payoff by what waits for what; None where that is not known, or where a culprit is slow now and then only:
    the last steps do not stand for all."""
    if len(slow) > MAX_REPLAYED or any(each.hits is not None for each in slow):
        return None
    since = max(each.since for each in slow)
    stalled = np.flatnonzero(stalls_beside(steps, slow))
    replay = Replay.of(timings, steps, max(since, int(stalled[-1]) + 1) if len(stalled) else since)
    if replay is None:
        return None
    now, all_fixed = replay.seconds(()), replay.seconds(slow)
    recorded = replay.recorded_seconds(steps)
    if not (abs(now - recorded) <= TOLERANCE * recorded and np.isfinite(all_fixed)):
        return None
    whole = max(now, recorded)  # of what was recorded, fixing a culprit leaves what the replay does not explain
    shares = []
    for each in slow:
        others = [other for other in slow if other is not each]
        alone = now - (replay.seconds([each]) if others else all_fixed)
        last = (replay.seconds(others) if others else now) - all_fixed
        shares.append(float(np.clip((alone + last) / 2 / whole, 0.0, 1.0)))
    return Payoff(shares, max(whole / max(whole - (now - all_fixed), 1e-9), 1.0), True)


def _by_busiest(steps: Steps, slow: Sequence[Slow]) -> Payoff:
    """The payoff where no collective is known: a step lasts as long as its busiest rank."""
    kept = ~stalls_beside(steps, slow)
    rest, before, after = _busiest(steps, slow)
    now = np.fmax(rest, np.fmax.reduce(before, axis=1))
    all_fixed = np.fmax(rest, np.fmax.reduce(after, axis=1))
    others_before, others_after = _maximum_of_others(before), _maximum_of_others(after)
    shares = []
    for place, each in enumerate(slow):
        first = now - np.fmax(rest, np.fmax(others_before[:, place], after[:, place]))
        last = np.fmax(rest, np.fmax(others_after[:, place], before[:, place])) - all_fixed
        own = kept.copy()
        own[: each.since] = False
        saved = np.clip((first + last) / 2, 0, steps.duration)[own]
        shares.append(float(saved.sum() / max(steps.duration[own].sum(), 1e-9)))
    kept[: min(each.since for each in slow)] = False
    duration = steps.duration[kept]
    left = np.maximum(duration - np.clip(now - all_fixed, 0, None)[kept], 1e-9)
    return Payoff(shares, float(duration.sum() / max(left.sum(), 1e-9)))


def _busiest(steps: Steps, slow: Sequence[Slow]) -> tuple[Floats, Floats, Floats]:
    """The busiest rank's time in each step: of the ranks that are no culprits [S], of each culprit [S, K], and of each
    culprit if it were as fast as its peers from its onset on [S, K]."""
    others = np.ones(steps.busy.shape[1], np.bool_)
    before = np.empty((len(steps.numbers), len(slow)))
    after = np.empty_like(before)
    for place, each in enumerate(slow):
        columns = np.array(each.columns)
        others[columns] = False
        before[:, place] = np.fmax.reduce(steps.busy[:, columns], axis=1)
        after[:, place] = before[:, place]
        after[each.since :, place] -= np.fmax(each.series, 0.0)[each.since :]
    rest = np.fmax.reduce(steps.busy, axis=1, where=others[None, :], initial=-np.inf)
    return rest, before, after


def _maximum_of_others(values: Floats) -> Floats:
    """[S, K]: for each of `values` [S, K] the largest of the others in its row; -inf where there is none."""
    padded = np.pad(values, ((0, 0), (1, 1)), constant_values=-np.inf)
    left = np.fmax.accumulate(padded, axis=1)[:, :-2]
    right = np.fmax.accumulate(padded[:, ::-1], axis=1)[:, ::-1][:, 2:]
    result: Floats = np.fmax(left, right)
    return result
