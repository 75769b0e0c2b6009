"""One process that runs one probe, or a group of probes that share what is dear to ask for, seen from outside."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence

from laggard import wire
from laggard.model import Verdict
from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.host.host import Host
from laggard.probes.host.progress import Doing, Progress, examine
from laggard.probes.probe import Probe
from laggard.probes.runner import worker as child
from laggard.probes.runner.reaper import cause_of_death
from laggard.probes.runner.report import ProbeAnswer
from laggard.probes.runner.worker import Observation

_GLANCE_SECONDS = 0.25


class Visit:
    """From the process's start to its last answer. Each probe has a verdict of its own; a hang costs the probe that
    hangs and those after it in the group, and says so."""

    def __init__(self, probes: Sequence[Probe], deadline: float) -> None:
        self.probes = tuple(probes)
        group = self.probes[0].group
        self.name = group.name if group else self.probes[0].name
        self.pid = 0
        self.pipe = -1
        self.seen: list[Observation] = []  # in the order of the probes, as far as they have answered
        self._deadline = deadline
        self._started = self._heard_last = time.monotonic()
        self._elapsed: list[float] = []
        self._heard = bytearray()
        self._progress = Progress() if any(probe.on_hang for probe in self.probes) else None

    @property
    def done(self) -> bool:
        return len(self.seen) == len(self.probes)

    @property
    def doing(self) -> Doing | None:
        return self._progress.ask() if self._progress else None

    @property
    def until(self) -> float:
        """When waiting ends: at the deadline, or earlier where one step has taken longer than it ever should."""
        doing = self.doing
        return min(self._deadline, doing.due) if doing else self._deadline

    @property
    def wake(self) -> float:
        """When to look at it again: what it is doing changes without a sign."""
        return min(self.until, time.monotonic() + _GLANCE_SECONDS) if self._progress else self.until

    def fork(self, host: Host, histories: Mapping[str, CounterHistory]) -> None:
        self.pipe, write_end = os.pipe()
        try:
            pid = _fork()
            if pid == 0:
                host.progress = self._progress
                child.live(self.probes, host, histories, write_end, self._deadline - self._started)
            self.pid = pid
        finally:
            os.close(write_end)

    def hear(self) -> None:
        """Take what the pipe holds; each whole line is a probe's answer, its end before the last one is a death."""
        data = os.read(self.pipe, 1 << 16)
        self._heard += data
        while not self.done and b"\n" in self._heard:
            line, _, self._heard = self._heard.partition(b"\n")
            self._believe(bytes(line))
        if self.done:
            return
        if not data:
            self.tell_nothing(f"gave no answer: {cause_of_death(self.pid)}")
        elif len(self._heard) > child.MOST_ANSWER_BYTES:
            self.tell_nothing(f"answered with more than {child.MOST_ANSWER_BYTES} bytes")

    def _believe(self, line: bytes) -> None:
        try:
            self._conclude(wire.decode(line, Observation))
        except wire.WireError as error:
            self.tell_nothing(f"answered with garbage: {error}")

    def run_out(self) -> None:
        """Time is up. In a step that may take that long it is slow; in any other it hangs."""
        waited = time.monotonic() - self._started
        reason = f"probe {self._current.name} gave no answer in {waited:.1f} s and was killed"
        doing = self.doing
        if doing is None:
            self.tell_nothing(reason)
        elif time.monotonic() >= doing.due:
            self._hangs(self.pid, doing)
        else:
            self.tell_nothing(f"{reason}: {doing.text} may take {doing.patience_seconds:.0f} s")

    def still_stuck(self, pid: int, doing: Doing | None) -> None:
        """A process of an earlier run did not die when it was killed. It is not joined by another one."""
        if doing is not None and time.monotonic() >= doing.due:
            self._hangs(pid, doing)
        else:
            self.tell_nothing(f"process {pid} of an earlier run is still stuck in the kernel")

    def _hangs(self, pid: int, doing: Doing) -> None:
        hang = examine(pid, doing)
        reason = f"{hang.call} gave no answer in {hang.seconds} s"
        judge = next((probe.on_hang for probe in self.probes if probe.on_hang), None)
        findings = (judge(hang),) if judge else ()
        self._conclude(Observation(Verdict.UNKNOWN, reason, findings))
        self._abandon(reason)

    def tell_nothing(self, reason: str) -> None:
        self._conclude(Observation(Verdict.UNKNOWN, reason))
        self._abandon(reason)

    def _abandon(self, reason: str) -> None:
        while not self.done:
            self._conclude(Observation(Verdict.UNKNOWN, f"was not reached: {reason}"))

    @property
    def _current(self) -> Probe:
        return self.probes[len(self.seen)]

    def _conclude(self, observation: Observation) -> None:
        now = time.monotonic()
        self.seen.append(observation)
        self._elapsed.append(now - self._heard_last)
        self._heard_last = now

    def close(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def answers(self) -> list[ProbeAnswer]:
        return [
            ProbeAnswer(probe.name, seen, elapsed)
            for probe, seen, elapsed in zip(self.probes, self.seen, self._elapsed, strict=True)
        ]


def _fork() -> int:
    """Python warns of forking a process with threads; the child runs its probes and leaves by _exit, and should it
    meet a lock that some thread held, its deadline ends it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
