"""The steps that a verdict is drawn from, and what a rank's peers did in them; computed when asked for, and once."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.job_timings import Evidence
from laggard.collector.locate.slow.peers import Floats, Middle, Pool, blocks, median_over_steps, middle_of_rows

MIN_STEPS = 8  # fewer say nothing: one garbage collection or page fault is a large share of them
WARM_UP_STEPS = 2  # allocation, compilation and the first input are not the machine's speed


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps to judge by, over S steps and R ranks."""

    numbers: NDArray[np.int64]  # [S]
    duration: Floats  # [S]: the ranks' median
    phases: Floats  # [S, R, P]
    busy: Floats  # [S, R]
    waited: Floats  # [S, R]
    middle: Middle  # of busy
    by_onset: dict[int, Peers] = dataclasses.field(default_factory=dict)

    def excess(self, ranks: slice | NDArray[np.int64], first: int = 0) -> Floats:
        """[S - first, K]: busy less the peers' median."""
        busy = self.busy[:, ranks]
        return (busy - self.middle.without(busy))[first:]

    def peers(self, since: int) -> Peers:
        return self.by_onset.setdefault(since, Peers(self, since))

    @staticmethod
    def usable(evidence: Evidence) -> Steps | None:
        """Steps after the warm-up that at least half of the ranks have finished; None where they are too few."""
        if len(evidence.ranks) < 2:
            return None
        seen = np.isfinite(evidence.step_seconds).sum(axis=1)
        keep = (seen >= max(2, len(evidence.ranks) / 2)) & (evidence.steps >= WARM_UP_STEPS)
        if keep.sum() < MIN_STEPS:
            return None
        kept = _rows(keep)
        phases = evidence.phase_seconds[kept]
        busy = phases.sum(axis=2)
        return Steps(
            numbers=evidence.steps[kept],
            duration=middle_of_rows(evidence.step_seconds[kept]).median,
            phases=phases,
            busy=busy,
            waited=evidence.waited_seconds[kept],
            middle=middle_of_rows(busy),
        )


def _rows(keep: NDArray[np.bool_]) -> slice | NDArray[np.int64]:
    """As a slice where they stand together, as most often: then nothing is copied."""
    rows = np.flatnonzero(keep)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows


class Peers:
    """What the others do from step index `since` on, of use for every rank that is slow since then."""

    def __init__(self, steps: Steps, since: int) -> None:
        self._steps, self._since = steps, since

    @functools.cached_property
    def _excesses(self) -> Floats:
        """Each rank's median excess."""
        parts = [
            median_over_steps(self._steps.excess(block, self._since)) for block in blocks(self._steps.busy.shape[1])
        ]
        return np.concatenate(parts)

    @functools.cached_property
    def _pools(self) -> tuple[Pool, ...]:
        phases = (self._steps.phases[:, :, phase] for phase in range(self._steps.phases.shape[2]))
        return tuple(Pool(values[self._since :]) for values in (*phases, self._steps.busy, self._steps.waited))

    def spread(self, column: int) -> float:
        """How much the other ranks' median excess differs among them: the median absolute deviation, as a sigma."""
        if len(self._excesses) < 4:
            return 0.0
        others = np.delete(self._excesses, column)
        others = others[np.isfinite(others)]
        return 1.4826 * float(np.median(np.abs(others - np.median(others))))

    def medians(self, column: int) -> tuple[Floats, float, float]:
        """Without the rank in `column`: seconds of each phase, busy and waited."""
        steps, tail = self._steps, slice(self._since, None)
        own = (*steps.phases[tail, column].T, steps.busy[tail, column], steps.waited[tail, column])
        *phases, busy, waited = (pool.median_without(values) for pool, values in zip(self._pools, own, strict=True))
        return np.array(phases), busy, waited
