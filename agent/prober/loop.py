"""The loop that runs the probes at an interval, and keeps the latest report."""

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
"""The time until the next round after one that failed, where the interval is longer."""

PROBER: Final = "prober"
"""The name that the prober has among the probes of a report when the prober itself failed."""


class ProbeRound(NamedTuple):
    """A report and when it was finished, Unix time. `complete`: whether the probes ran; where they did not, the report
    says why."""

    report: Report
    finished_at: float
    complete: bool


class ProbeLoop:
    """Runs the probes again and again, on a thread of its own. `run_probes` raises ProberError where there is no
    report. Readers take `latest` as a whole: it is replaced, never changed."""

    def __init__(self, run_probes: Callable[[], Report], node: str, interval_seconds: float) -> None:
        self._run_probes = run_probes
        self._node = node
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self.latest = ProbeRound(_unknown(node, "the first round of probes is under way", 0.0), time.time(), False)
        self.ready = False
        """True where any round since the start was complete."""
        self.round_seconds: float | None = None
        """The time that the last complete round took; None: there was none."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="probes", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def run_round(self) -> None:
        """Runs the probes once and replaces `latest`."""
        started = time.monotonic()
        try:
            report, complete = self._run_probes(), True
        except ProberError as error:
            report, complete = _unknown(self._node, str(error), time.monotonic() - started), False
            if not self._stopped.is_set():
                log.warning("no probe report: %s", error)
        except Exception as error:  # the loop goes on: an old report would look like a valid one
            report, complete = _unknown(self._node, f"a defect in laggard: {error!r}", 0.0), False
            log.exception("a defect in laggard, in a round of probes")
        if complete:
            self.round_seconds = time.monotonic() - started
        self.latest = ProbeRound(report, time.time(), complete)
        self.ready = self.ready or complete

    def _run(self) -> None:
        while not self._stopped.is_set():
            started = time.monotonic()
            self.run_round()
            pause = self._interval_seconds if self.latest.complete else min(self._interval_seconds, RETRY_SECONDS)
            self._stopped.wait(max(0.0, pause - (time.monotonic() - started)))


def _unknown(node: str, reason: str, elapsed_seconds: float) -> Report:
    """Returns the report that stands in where the probes did not run. That is never `ok`."""
    prober = ProbeResult(PROBER, Verdict.UNKNOWN, reason, elapsed_seconds)
    return Report(Verdict.UNKNOWN, node, elapsed_seconds, (prober,), (), {})
