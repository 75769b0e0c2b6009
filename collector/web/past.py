"""The past, as the metrics tell it: which machines fail again and again, and what came back.

The machines are read anew every few minutes, when somebody asks for the metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from laggard.collector.node_history import LATELY_SECONDS, Offender, offenders
from laggard.collector.web.source import Incidents

log = logging.getLogger("laggard.collector")

AGAIN_SECONDS: Final = 300.0
MAX_OFFENDERS: Final = 100
"""The most machines that have series of their own."""

MAX_RETURNED: Final = 256
"""The most faults that came back and have a series."""


class PastLook:
    """The machines that fail again and again, for use from threads: while one looks, the others take what there is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._offenders: tuple[Offender, ...] = ()
        self._at = float("-inf")

    def look(self, incidents: Incidents) -> tuple[Offender, ...]:
        if self._clock() - self._at >= AGAIN_SECONDS and self._lock.acquire(blocking=False):
            try:
                now = self._wall()
                lately = now - LATELY_SECONDS
                self._offenders = offenders(incidents.all_faults(lately), lately, now, MAX_OFFENDERS)
            except Exception:  # the other metrics do not suffer by it
                log.exception("a defect in laggard: nothing of the past in the metrics")
            finally:
                self._at = self._clock()
                self._lock.release()
        return self._offenders


def returned_faults(incidents: Incidents) -> dict[tuple[str, ...], float]:
    """The open faults that were over less than a week before: node, code and device, and how often."""
    back = (it for it in incidents.faults if it.returned is not None)
    found = {(it.node, it.code, it.device): float(it.returned.times) for it in back if it.returned}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MAX_RETURNED])
