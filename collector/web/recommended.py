"""The gains that the running jobs' recommendations promise, for the metrics.

To make one takes milliseconds to tenths of a second, and a collector may hold thousands of jobs. So a recommendation is
looked at anew a minute after the last time, when somebody asks for the metrics, and one answer has a bounded time for
that: the jobs whose last look is the longest ago come first, and the others keep what they have.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.web.situation import situation_of
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.advice.values import Item

log = logging.getLogger("laggard.collector")

AGAIN_SECONDS: Final = 60.0
BUDGET_SECONDS: Final = 0.2
"""The time for one answer; the job that is under way is finished."""

MAX_JOBS: Final = 512
"""The most jobs that are looked at. Where more run, each user has as many as any other who has so many."""

MAX_ITEMS: Final = 8
"""The most items of one job: those that promise most. With MAX_JOBS the metrics have 8192 series at most."""

MAX_KEY_CHARACTERS: Final = 128
"""The most characters of what is to be changed, which may have a host's name in it."""


class Looked(NamedTuple):
    """`at`: when, in monotonic seconds; minus infinity: not yet."""

    at: float
    items: tuple[Item, ...]


_NEVER: Final = Looked(-math.inf, ())


class Recommended:
    """The recommendations of running jobs, for use from threads: while one looks, the others take what there is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked: dict[JobKey, Looked] = {}

    def look(self, snapshot: ClusterSnapshot) -> Mapping[JobKey, tuple[Item, ...]]:
        """The items of each running job that was looked at."""
        if self._lock.acquire(blocking=False):
            try:
                self._renew(snapshot)
            finally:
                self._lock.release()
        return {key: looked.items for key, looked in self._looked.items() if looked.items}

    def _renew(self, snapshot: ClusterSnapshot) -> None:
        began = self._clock()
        looked = {key: self._looked.get(key, _NEVER) for key in _chosen(snapshot)}
        for key in sorted(looked, key=lambda key: looked[key].at):
            now = self._clock()
            if now - looked[key].at < AGAIN_SECONDS or now - began >= BUDGET_SECONDS:
                break
            looked[key] = Looked(now, _items(snapshot, key))
        self._looked = looked


def _chosen(snapshot: ClusterSnapshot) -> list[JobKey]:
    """The jobs that run, the first of each user before anybody's second."""
    before: Counter[int] = Counter()
    turns = []
    for job in snapshot.jobs:
        if job.running:
            turns.append((before[job.key.owner], job.key))
            before[job.key.owner] += 1
    return [key for _, key in sorted(turns, key=lambda turn: turn[0])[:MAX_JOBS]]


def _items(snapshot: ClusterSnapshot, key: JobKey) -> tuple[Item, ...]:
    try:
        return recommend(situation_of(snapshot, str(key))).items[:MAX_ITEMS]
    except Exception:  # the other metrics do not suffer by it
        log.exception("a defect in laggard: no recommendation for job %s in the metrics", key)
        return ()
