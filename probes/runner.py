"""Runs probes, each in a process of its own, and makes the node's report. The only owner of deadlines and errors.

A probe may ask a driver or a dead server and never come back, not even for SIGKILL. So no probe runs in the process
that answers: it is forked, listened to until its deadline, killed, and not waited for.
"""

from __future__ import annotations

import os
import select
import time
import warnings
from collections.abc import Iterable, Sequence

from laggard import wire
from laggard.model import Finding, ProbeResult, Report, Severity, Verdict, worst
from laggard.probes import child
from laggard.probes.burial import bury, cause_of_death, end, is_gone
from laggard.probes.child import Observation
from laggard.probes.host import Host
from laggard.probes.shape import Probe

_REASON_LENGTH = 300


class Runner:
    """Remembers the processes that could not be killed: what is stuck in the kernel is not started a second time."""

    def __init__(self) -> None:
        self._stuck: dict[str, int] = {}

    def run(
        self, host: Host, probes: Sequence[Probe], *, deadline_seconds: float, warnings_fail: bool = False
    ) -> Report:
        """The report of `probes`, made within `deadline_seconds` (plus at most 0.1 s to clean up), whatever they do.

        A critical finding fails its probe, and so the report; a warning does where `warnings_fail`.
        """
        started = time.monotonic()
        visits = [self._start(probe, host, started + deadline_seconds) for probe in probes]
        try:
            _listen([visit for visit in visits if visit.observation is None])
        finally:
            self._end(visits)
        results = tuple(visit.result(warnings_fail) for visit in visits)
        return Report(
            verdict=worst(result.verdict for result in results),
            node=host.node(),
            elapsed_seconds=round(time.monotonic() - started, 4),
            probes=results,
            findings=tuple(finding for visit in visits for finding in visit.seen.findings),
            facts={visit.probe.name: visit.seen.facts for visit in visits if visit.seen.facts},
        )

    def _start(self, probe: Probe, host: Host, deadline: float) -> Visit:
        visit = Visit(probe, min(deadline, time.monotonic() + probe.deadline_seconds))
        stuck = self._stuck.get(probe.name)
        if stuck is not None and not is_gone(stuck):
            visit.tell_nothing(f"process {stuck} of an earlier run is still stuck in the kernel")
            return visit
        self._stuck.pop(probe.name, None)
        try:
            visit.fork(host)
        except OSError as error:
            visit.tell_nothing(f"could not be started: {error.strerror}")
        return visit

    def _end(self, visits: Iterable[Visit]) -> None:
        running = {visit.pid: visit.probe.name for visit in visits if visit.pid}
        for visit in visits:
            visit.close()
        for pid in running:
            end(pid)
        for pid in bury(running):
            self._stuck[running[pid]] = pid


def run(host: Host, probes: Sequence[Probe], *, deadline_seconds: float, warnings_fail: bool = False) -> Report:
    """One run, for a process that makes one. A daemon keeps a Runner."""
    return Runner().run(host, probes, deadline_seconds=deadline_seconds, warnings_fail=warnings_fail)


class Visit:
    """One probe's process, from its start to its answer."""

    def __init__(self, probe: Probe, deadline: float) -> None:
        self.probe = probe
        self.deadline = deadline
        self.pid = 0
        self.pipe = -1
        self.observation: Observation | None = None
        self._started = time.monotonic()
        self._elapsed = 0.0
        self._heard = bytearray()

    @property
    def seen(self) -> Observation:
        return self.observation or Observation(Verdict.UNKNOWN, "was not listened to")

    def fork(self, host: Host) -> None:
        self.pipe, write_end = os.pipe()
        try:
            pid = _fork()
            if pid == 0:
                child.live(self.probe, host, write_end, self.deadline - self._started)
            self.pid = pid
        finally:
            os.close(write_end)

    def hear(self) -> None:
        """Take what the pipe holds; a whole line is the answer, its end without one is a death."""
        data = os.read(self.pipe, 1 << 16)
        self._heard += data
        if self._heard.endswith(b"\n"):
            self._believe()
        elif not data:
            self.tell_nothing(f"gave no answer: {cause_of_death(self.pid)}")
        elif len(self._heard) > child.MOST_ANSWER_BYTES:
            self.tell_nothing(f"answered with more than {child.MOST_ANSWER_BYTES} bytes")

    def _believe(self) -> None:
        try:
            self._conclude(wire.decode(bytes(self._heard), Observation))
        except wire.WireError as error:
            self.tell_nothing(f"answered with garbage: {error}")

    def run_out(self) -> None:
        waited = time.monotonic() - self._started
        self.tell_nothing(f"probe {self.probe.name} gave no answer in {waited:.1f} s and was killed")

    def tell_nothing(self, reason: str) -> None:
        self._conclude(Observation(Verdict.UNKNOWN, reason))

    def _conclude(self, observation: Observation) -> None:
        self.observation = observation
        self._elapsed = time.monotonic() - self._started

    def close(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def result(self, warnings_fail: bool) -> ProbeResult:
        failing = [finding for finding in self.seen.findings if fails(finding, warnings_fail)]
        reasons = [f"{finding.code} {finding.device}" for finding in failing] + [self.seen.reason]
        return ProbeResult(
            name=self.probe.name,
            verdict=Verdict.FAIL if failing else self.seen.verdict,
            reason=_one_line("; ".join(filter(None, reasons))),
            elapsed_seconds=round(self._elapsed, 4),
        )


def fails(finding: Finding, warnings_fail: bool) -> bool:
    return finding.severity is Severity.CRITICAL or (warnings_fail and finding.severity is Severity.WARNING)


def _listen(visits: Iterable[Visit]) -> None:
    """Until each visit is concluded: by its answer, its death or its deadline."""
    waiting = {visit.pipe: visit for visit in visits}
    poller = select.poll()
    for pipe in waiting:
        poller.register(pipe, select.POLLIN)
    while waiting:
        seconds = min(visit.deadline for visit in waiting.values()) - time.monotonic()
        for pipe, _ in poller.poll(max(0.0, seconds) * 1000):
            waiting[pipe].hear()
        for pipe, visit in list(waiting.items()):
            if visit.observation is None and time.monotonic() >= visit.deadline:
                visit.run_out()
            if visit.observation is not None:
                poller.unregister(pipe)
                del waiting[pipe]


def _fork() -> int:
    """Python warns of forking a process with threads; the child runs one probe and leaves by _exit, and should it
    meet a lock that some thread held, its deadline ends it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= _REASON_LENGTH else line[: _REASON_LENGTH - 3] + "..."
