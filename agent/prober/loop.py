"""The loop that runs the probes at an interval, and keeps the latest report."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from laggard.agent.prober.process import KnownProbes, ProberError, Refused, split
from laggard.kit.errors import UsageError
from laggard.kit.processes import own_process
from laggard.model import ProbeResult, Report, Verdict

log = logging.getLogger("laggard.agent")

CHANGE_SECONDS: Final = 5.0
"""The least time from the start of a round to the start of one that a change of `changed_file` asks for."""

_TICK_SECONDS: Final = 1.0

RETRY_SECONDS: Final = 10.0
"""The time until the next round after one that failed, where the interval is longer."""

PROBER: Final = "prober"
"""The name that the prober has among the probes of a report when the prober itself failed."""


ROUND: Final = "round"
"""All probes, and the gate's variants of some."""

VARIANTS: Final = "variants"
"""The gate's variants alone."""

_NO_VARIANTS: Final = Report(Verdict.SKIPPED, "", 0.0, (), (), {})


class ProbeRound(NamedTuple):
    """A report and when it was finished, Unix time. `complete`: whether the probes ran; where they did not, the report
    says why. `variants`: what the gate's variants found (known.py), which is no part of the report. `began`, `ended`
    and `variants_began` are seconds since boot."""

    report: Report
    finished_at: float
    complete: bool
    variants: Report = _NO_VARIANTS
    began: float = 0.0
    ended: float = 0.0
    variants_began: float = 0.0


class ProbeLoop:
    """Runs the probes again and again, on a thread of its own. `run_probes` raises ProberError where there is no
    report, and so does `run_variants`, which runs the gate's variants alone. `changed_file`: a round is due after
    each change of it, since a job failed or the gate did something; empty: there is none. Readers take `latest` as a
    whole: it is replaced, never changed."""

    def __init__(
        self,
        run_probes: Callable[[], Report],
        node: str,
        interval_seconds: float,
        run_variants: Callable[[], Report] | None = None,
        changed_file: str = "",
    ) -> None:
        self._changed_file = changed_file
        self._run_probes = run_probes
        self._run_variants = run_variants
        self._node = node
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._wanted = ""
        self._runs = False
        self._lock = threading.Lock()  # of the two above
        self.on_change: Callable[[], None] = lambda: None
        """Is called, on the loop's thread, after `latest` was replaced."""
        self.latest = ProbeRound(_unknown(node, "the first round of probes is under way", 0.0), time.time(), False)
        self.ready = False
        """True where any round since the start was complete."""
        self.round_seconds: float | None = None
        """The time that the last complete round took; None: there was none."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="probes", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def want(self, what: str) -> None:
        """Asks for ROUND or VARIANTS before it is due. Nothing follows where one of them runs: its end is told by
        `on_change`, and who still wants one asks again."""
        with self._lock:
            if self._runs:
                return
            self._wanted = ROUND if ROUND in (what, self._wanted) else what
        self._wake.set()

    def run_round(self) -> None:
        """Runs the probes once and replaces `latest`."""
        started, began = time.monotonic(), uptime()
        variants = _NO_VARIANTS
        try:
            (report, variants), complete = split(self._run_probes()), True
        except ProberError as error:
            report, complete = _unknown(self._node, str(error), time.monotonic() - started), False
            if not self._stopped.is_set():
                log.warning("no probe report: %s", error)
        except Exception as error:  # the loop goes on: an old report would look like a valid one
            report, complete = _unknown(self._node, f"a defect in laggard: {error!r}", 0.0), False
            log.exception("a defect in laggard, in a round of probes")
        if complete:
            self.round_seconds = time.monotonic() - started
        self.latest = ProbeRound(report, time.time(), complete, variants, began, uptime(), began)
        self.ready = self.ready or complete

    def run_variants(self) -> None:
        """Runs the gate's variants once, and replaces those of `latest`. Where they did not run, the old ones stay."""
        began = uptime()
        try:
            if self._run_variants is not None:
                variants = split(self._run_variants())[1]
                self.latest = self.latest._replace(variants=variants, variants_began=began)
        except ProberError as error:
            log.warning("no answer for a prolog: %s", error)
        except Exception:
            log.exception("a defect in laggard, in the probes for a prolog")

    def _run(self) -> None:
        while not self._stopped.is_set():
            started, seen = time.monotonic(), self._changed_at()
            self._do(self.run_round)
            pause = self._interval_seconds if self.latest.complete else min(self._interval_seconds, RETRY_SECONDS)
            self._rest(started + pause, started + CHANGE_SECONDS, seen)

    def _changed_at(self) -> int:
        try:
            return os.stat(self._changed_file).st_mtime_ns
        except OSError:
            return 0

    def _rest(self, until: float, sooner: float, seen: int) -> None:
        """Waits until the next round is due (monotonic seconds), or wanted. Runs variants that are wanted meanwhile.
        `sooner`: from then on a change is looked for, since `seen`."""
        while not self._stopped.is_set() and (left := until - time.monotonic()) > 0:
            if not self._wake.wait(min(left, _TICK_SECONDS) if self._changed_file else left):
                if self._changed_file and time.monotonic() >= sooner and self._changed_at() != seen:
                    return
                continue
            self._wake.clear()
            with self._lock:
                wanted, self._wanted = self._wanted, ""
            if wanted == ROUND:
                return
            if wanted == VARIANTS:
                self._do(self.run_variants)

    def _do(self, run: Callable[[], None]) -> None:
        with self._lock:
            self._runs = True
        run()
        with self._lock:
            self._runs, self._wanted = False, ""
        self.on_change()


def uptime() -> float:
    """Seconds since boot, with those of a suspended machine, as in /proc/uptime. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _unknown(node: str, reason: str, elapsed_seconds: float) -> Report:
    """Returns the report that stands in where the probes did not run. That is never `ok`."""
    prober = ProbeResult(PROBER, Verdict.UNKNOWN, reason, elapsed_seconds)
    return Report(Verdict.UNKNOWN, node, elapsed_seconds, (prober,), (), {})


# What an agent's own process knows of the probes: that its profile can be used, and what a prolog asks for.
#
# A process of its own tells it when the agent starts, since that takes the code of every probe, 3 MiB, which only the
# prober needs later.

_SECONDS: Final = 60.0
"""A cold file system may need seconds for a hundred modules."""

_ANSWER: msgspec.json.Decoder[KnownProbes | Refused] = msgspec.json.Decoder(KnownProbes | Refused)


def know_probes(profile: str, node: str) -> KnownProbes:
    """Raises UsageError where `profile` (a name or a path) cannot be used, or nothing tells what it runs."""
    command = own_process("laggard.agent.prober.known", profile, node)
    try:
        answer = _ANSWER.decode(subprocess.run(command, stdout=subprocess.PIPE, timeout=_SECONDS, check=True).stdout)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise UsageError(f"cannot tell what profile {profile} runs: {error}") from None
    if isinstance(answer, Refused):
        raise UsageError(answer.message)
    return answer
