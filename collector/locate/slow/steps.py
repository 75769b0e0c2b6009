"""The steps that a verdict is drawn from, and what a rank's peers did in them. Pure. Medians are computed when they
are first asked for, and once."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.job_timings import Floats, JobTimings
from laggard.collector.locate.slow.peers import (
    LeaveOneOutMedian,
    PeerPool,
    blocks,
    median_over_steps,
    row_medians,
)

MIN_STEPS = 8  # fewer prove nothing: one garbage collection or page fault is a large share of them
WARM_UP_STEPS = 2  # allocation, compilation and the first input are not the machine's speed


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps to judge by, over S steps, R ranks and P phases. Times in seconds."""

    numbers: NDArray[np.int64]  # [S]
    duration: Floats  # [S]: the ranks' median
    phases: Floats  # [S, R, P]: own time
    busy: Floats  # [S, R]: own time of all phases, input included
    waited: Floats  # [S, R]: in collectives
    busy_medians: LeaveOneOutMedian
    peers_by_onset: dict[int, Peers] = dataclasses.field(default_factory=dict)

    def excess(self, ranks: slice | NDArray[np.int64], first: int = 0) -> Floats:
        """[S - first, K]: by how many seconds each rank was busier than the median of its peers."""
        busy = self.busy[:, ranks]
        return (busy - self.busy_medians.excluding(busy))[first:]

    def peers(self, since: int) -> Peers:
        """The peers from step index `since` on."""
        return self.peers_by_onset.setdefault(since, Peers(self, since))

    @staticmethod
    def usable(timings: JobTimings) -> Steps | None:
        """The steps after the warm-up that at least half of the ranks have finished; None where they are too few."""
        if len(timings.ranks) < 2:
            return None
        finished = np.isfinite(timings.step_seconds).sum(axis=1)
        keep = (finished >= max(2, len(timings.ranks) / 2)) & (timings.steps >= WARM_UP_STEPS)
        if keep.sum() < MIN_STEPS:
            return None
        kept = _rows(keep)
        phases = timings.phase_seconds[kept]
        busy = phases.sum(axis=2)
        return Steps(
            numbers=timings.steps[kept],
            duration=row_medians(timings.step_seconds[kept]).median,
            phases=phases,
            busy=busy,
            waited=timings.waited_seconds[kept],
            busy_medians=row_medians(busy),
        )


def _rows(keep: NDArray[np.bool_]) -> slice | NDArray[np.int64]:
    """The rows to keep; a slice where they are contiguous, as they mostly are: then nothing is copied."""
    rows = np.flatnonzero(keep)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows


class Peers:
    """What the other ranks do from step index `since` on; shared by all ranks that are slow since then."""

    def __init__(self, steps: Steps, since: int) -> None:
        self._steps, self._since = steps, since

    @functools.cached_property
    def _excesses(self) -> Floats:
        """[R]: each rank's median excess."""
        parts = [
            median_over_steps(self._steps.excess(block, self._since)) for block in blocks(self._steps.busy.shape[1])
        ]
        return np.concatenate(parts)

    @functools.cached_property
    def _pools(self) -> tuple[PeerPool, ...]:
        """One for each phase, then one for busy and one for waited time."""
        phases = (self._steps.phases[:, :, phase] for phase in range(self._steps.phases.shape[2]))
        return tuple(PeerPool(values[self._since :]) for values in (*phases, self._steps.busy, self._steps.waited))

    def spread(self, column: int) -> float:
        """How much the median excess differs among the ranks other than `column`, in seconds: the median absolute
        deviation, scaled to a standard deviation (times 1.4826, as for normal data). 0.0 for fewer than four ranks."""
        if len(self._excesses) < 4:
            return 0.0
        others = np.delete(self._excesses, column)
        others = others[np.isfinite(others)]
        return 1.4826 * float(np.median(np.abs(others - np.median(others))))

    def medians(self, column: int) -> tuple[Floats, float, float]:
        """The median seconds of each phase [P], busy and waited, of all ranks but `column`."""
        steps, tail = self._steps, slice(self._since, None)
        own = (*steps.phases[tail, column].T, steps.busy[tail, column], steps.waited[tail, column])
        *phases, busy, waited = (pool.median_excluding(values) for pool, values in zip(self._pools, own, strict=True))
        return np.array(phases), busy, waited
