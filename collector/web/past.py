"""The past, as the metrics tell it: what the last week cost, which machines fail again and again, what came back.

The ledger is read anew every few minutes, when somebody asks for the metrics: a week of a large cluster takes tenths of
a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.collector.incidents.incident import WEEK_SECONDS
from laggard.collector.jobs.job import JobKey
from laggard.collector.ledger.goodput import JobGoodput
from laggard.collector.ledger.interval import Amount
from laggard.collector.ledger.ledger import ledger
from laggard.collector.node_history import LATELY_SECONDS, Offender, offenders
from laggard.collector.web.source import Incidents

log = logging.getLogger("laggard.collector")

AGAIN_SECONDS: Final = 300.0
MAX_OFFENDERS: Final = 100
"""The most machines that have series of their own."""

MAX_RETURNED: Final = 256
"""The most faults that came back and have a series."""


class Past(NamedTuple):
    """`week`: GPU-hours of the last seven days. `jobs`: the goodput of those with the most GPU-hours."""

    week: Amount | None = None
    jobs: tuple[JobGoodput, ...] = ()
    offenders: tuple[Offender, ...] = ()


class PastLook:
    """The past, for use from threads: while one looks, the others take what there is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._past, self._at = Past(), float("-inf")

    def look(self, incidents: Incidents) -> Past:
        if self._clock() - self._at >= AGAIN_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._past = _past(incidents, self._wall())
            except Exception:  # the other metrics do not suffer by it
                log.exception("a defect in laggard: nothing of the past in the metrics")
            finally:
                self._at = self._clock()
                self._lock.release()
        return self._past


def _past(incidents: Incidents, now: float) -> Past:
    losses, runs = incidents.losses(now - WEEK_SECONDS)
    document = ledger(losses, runs, now - WEEK_SECONDS, now)
    lately = now - LATELY_SECONDS
    return Past(document.total, document.jobs, offenders(incidents.all_faults(lately), lately, now, MAX_OFFENDERS))


def returned_faults(incidents: Incidents) -> dict[tuple[str, ...], float]:
    """The open faults that were over less than a week before: node, code and device, and how often."""
    back = (it for it in incidents.faults if it.returned is not None)
    found = {(it.node, it.code, it.device): float(it.returned.times) for it in back if it.returned}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MAX_RETURNED])


def goodput_of(past: Past) -> dict[JobKey, JobGoodput]:
    return {JobKey(it.owner, it.job_id): it for it in past.jobs}
