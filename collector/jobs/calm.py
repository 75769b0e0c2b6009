"""The jobs that need not be judged again in this round: they were healthy in the last one, and go on as they did.

A job is judged in every second round whatever it does, and in the others where anything has moved, so that a fault is
named one round later at most, and a verdict is never older than the round before. Pure but for what is kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.jobs.job import Job, JobKey, RankWindow, Run
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.locate.hang.liveness import SILENT_BEATS
from laggard.locate.hang.waits import WAITING_BESIDE_STOPPED_SECONDS
from laggard.locate.slow.significance import SLOW_RATIO
from laggard.locate.step_tables import END, START, STEP, WAITED
from laggard.model import Verdict

CALM_RATIO: Final = SLOW_RATIO / 2
"""The share of a step by which a rank's own time beside its peers', and the step, may differ from what they were: half
of what makes a rank slow."""


RECENT_STEPS: Final = 32
"""The last steps of a verdict that those after it are compared with."""


class _Kept(NamedTuple):
    """A healthy job as it was judged in the last round: its last step, how long a step was, and by how much each rank's
    own time was above the median of all, in seconds a step."""

    snapshot: JobSnapshot
    run: Run
    ranks: tuple[int, ...]
    last: int
    step: float
    excess: NDArray[np.float64]


class CalmJobs:
    """The jobs that were healthy in the last round. Not thread-safe: one round follows the other."""

    def __init__(self) -> None:
        self._kept: dict[JobKey, _Kept] = {}
        self._before: dict[JobKey, _Kept] = {}
        self._round = 0
        self._judges_all = True

    def begin_round(self, judges_all: bool) -> None:
        """`judges_all`: somebody asked for a verdict on what is now."""
        self._before, self._kept = self._kept, {}
        self._round += 1
        self._judges_all = judges_all

    def still(self, key: JobKey, job: Job, answering: Collection[str]) -> JobSnapshot | None:
        """The job as it was judged in the last round, where it goes on as it did; None where it is to be judged."""
        kept = self._before.get(key)
        if kept is None or self._judges_all or self._is_due(key) or job.run != kept.run or job.has_collectives:
            return None
        ranks = [job.ranks[number] for number in sorted(job.ranks)]
        if tuple(sorted(job.ranks)) != kept.ranks or not all(_goes_on(rank, answering) for rank in ranks):
            return None
        return None if _has_moved([rank.table for rank in ranks], kept) else kept.snapshot

    def judged(self, snapshot: JobSnapshot, run: Run) -> None:
        """Takes down a verdict that was drawn in this round."""
        location, timings = snapshot.location, snapshot.timings
        if location.verdict is not Verdict.OK or location.culprits or not snapshot.running:
            return
        lasted = timings.step_seconds[-RECENT_STEPS:]
        if np.isfinite(lasted).any(axis=0).all():
            own = np.nanmean(lasted - timings.waited_seconds[-RECENT_STEPS:], axis=0)
            step = float(np.median(np.nanmean(lasted, axis=0)))
            ranks, last = tuple(timings.ranks.tolist()), int(timings.steps[-1])
            self._kept[snapshot.key] = _Kept(snapshot, run, ranks, last, step, own - np.median(own))

    def _is_due(self, key: JobKey) -> bool:
        """Half of the jobs in each round, each in every second one."""
        return (zlib.crc32(str(key).encode()) + self._round) % 2 == 0


def _goes_on(rank: RankWindow, answering: Collection[str]) -> bool:
    """Whether nothing of the rank's state needs to be looked at."""
    newest, beat = rank.newest, rank.newest.beat
    if newest.state != "running" or newest.stopped or rank.source not in answering:
        return False
    if newest.in_flight is not None and newest.in_flight.seconds >= WAITING_BESIDE_STOPPED_SECONDS:
        return False
    return beat is None or beat.age_seconds <= SILENT_BEATS * beat.interval_seconds + 1.0


def _has_moved(tables: Sequence[NDArray[np.float64]], kept: _Kept) -> bool:
    """Whether the steps since then, as far as all ranks have made them, take another time than those before."""
    newer = _newer(tables, kept.last)
    if newer is None:
        return True
    if not newer.shape[1]:
        return False
    seconds = newer[:, :, END] - newer[:, :, START]
    step = float(np.median(seconds.mean(axis=1)))
    own = (seconds - newer[:, :, WAITED]).mean(axis=1)
    moved = np.abs(own - np.median(own) - kept.excess).max()
    allowed = CALM_RATIO * kept.step
    return bool(not moved <= allowed or not abs(step - kept.step) <= allowed)


def _newer(tables: Sequence[NDArray[np.float64]], last: int) -> NDArray[np.float64] | None:
    """The steps after number `last` that all ranks have, [ranks, steps, columns]; None where one has gaps there."""
    counts = [int(table[-1, STEP]) - last if len(table) else 0 for table in tables]
    common = min(counts)
    if common <= 0:
        return np.empty((len(tables), 0, 0))
    parts = [
        table[len(table) - count : len(table) - count + common] for table, count in zip(tables, counts, strict=True)
    ]
    if any(len(part) != common for part in parts):
        return None
    found = np.stack(parts)
    return (
        found if bool((found[:, 0, STEP] == last + 1).all() and (found[:, -1, STEP] == last + common).all()) else None
    )
