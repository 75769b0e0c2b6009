"""The numbers of pieces of advice by outcome, for the metrics. What is kept of runs is read from the file, so once a
minute at most, when somebody asks for the metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from laggard.collector.incidents.kept_advice import MAX_LIMIT, AdviceQuery
from laggard.collector.web.source import Incidents
from laggard.recommend.outcome.calibration import outcomes_by_target

AGAIN_SECONDS: Final = 60.0


class AdviceOutcomes:
    """Threads share it: while one reads, the others take what there is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._known: Mapping[tuple[str, str], int] = {}

    def look(self, incidents: Incidents) -> Mapping[tuple[str, str], int]:
        """The number of pieces of advice by target and outcome."""
        if self._lock.acquire(blocking=False):
            try:
                if self._clock() - self._read_at >= AGAIN_SECONDS:
                    runs = incidents.advice_document(AdviceQuery(limit=MAX_LIMIT)).runs
                    self._known = outcomes_by_target(it for run in runs for it in run.advised)
                    self._read_at = self._clock()
            finally:
                self._lock.release()
        return self._known
