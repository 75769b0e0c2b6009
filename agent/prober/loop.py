"""The probe rounds: when they run, and the latest one's report."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.agent.prober.process import ProberError
from laggard.model import ProbeResult, Report, Verdict

log = logging.getLogger("laggard.agent")

RETRY_SECONDS: Final = 10.0
"""Until the next round after one that failed, where the interval is longer."""

PROBER: Final = "prober"
"""The name under which the helper itself stands among the probes when it failed."""


class Round(NamedTuple):
    """A report and when it was finished, Unix time. `complete`: by the probes, and not in their place."""

    report: Report
    finished_at: float
    complete: bool


class Rounds:
    """Asks for a report again and again, on a thread of its own. Readers take `latest` whole."""

    def __init__(self, ask: Callable[[], Report], node: str, interval_seconds: float) -> None:
        self._ask = ask
        self._node = node
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self.latest = Round(_unknown(node, "the first round of probes is under way", 0.0), time.time(), False)
        self.ready = False
        """Whether there was a complete round since the start."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="rounds", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            self._round()
            pause = self._interval_seconds if self.latest.complete else min(self._interval_seconds, RETRY_SECONDS)
            self._stopped.wait(max(0.0, pause - (time.monotonic() - began)))

    def _round(self) -> None:
        began = time.monotonic()
        try:
            report, complete = self._ask(), True
        except ProberError as error:
            report, complete = _unknown(self._node, str(error), time.monotonic() - began), False
            if not self._stopped.is_set():
                log.warning("no probe report: %s", error)
        except Exception as error:  # the rounds go on: a report that grows old would look like one that holds
            report, complete = _unknown(self._node, f"a defect in laggard: {error!r}", 0.0), False
            log.exception("a defect in laggard, in a round of probes")
        self.latest = Round(report, time.time(), complete)
        self.ready = self.ready or complete


def _unknown(node: str, reason: str, elapsed_seconds: float) -> Report:
    """The report where there is none. Not looking is never `ok`."""
    prober = ProbeResult(PROBER, Verdict.UNKNOWN, reason, elapsed_seconds, unknown=reason)
    return Report(Verdict.UNKNOWN, node, elapsed_seconds, (prober,), (), {})
