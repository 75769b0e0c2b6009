"""Runs probes, each group in a process of its own, and makes the node's report. Deadlines and errors are handled here
alone.

A probe may ask a driver or a dead server and never return, not even on SIGKILL. So no probe runs in the process that
answers: it runs in a forked one, which is read until its deadline, killed, and not waited for.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from laggard import wire
from laggard.model import Finding, Report, Verdict
from laggard.probes.errors import NotApplicable
from laggard.probes.host.apart import fork
from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.host.host import Host
from laggard.probes.host.watchdog import AnnouncedCall, Watchdog, inspect_hang
from laggard.probes.probe import Probe
from laggard.probes.runner import worker
from laggard.probes.runner.report import ProbeAnswer, build_report
from laggard.probes.runner.state_file import HistoryStore, StuckProcesses, exit_reason, kill_group, reap
from laggard.probes.runner.worker import Observation

_WATCHDOG_SECONDS = 0.25
"""The time after which deadlines are looked at again: that of a process with a watchdog changes with each call."""


class ProbeProcess:
    """Supervises the process from its start to its last answer. Each probe has a verdict of its own: a hang costs the
    probe that hangs and those after it in the group, and the reasons say so."""

    def __init__(self, probes: Sequence[Probe], deadline: float) -> None:
        self.probes = tuple(probes)
        group = self.probes[0].group
        self._waits_alike = group is not None and group.waits_alike
        self.name = group.name if group and group.waits_alike else self.probes[0].name  # of what is stuck, if it is
        self.pid = 0
        self.pipe = -1
        self._deadline = deadline
        self._started = self._last_answer = time.monotonic()
        self.answers: list[ProbeAnswer] = []  # in the order of the probes, as far as they have answered
        self._received = bytearray()
        self._watchdog = Watchdog() if any(probe.on_hang for probe in self.probes) else None

    @property
    def finished(self) -> bool:
        """Whether each probe has an answer, be it that it gave none."""
        return len(self.answers) == len(self.probes)

    @property
    def current_call(self) -> AnnouncedCall | None:
        return self._watchdog.current_call() if self._watchdog else None

    @property
    def deadline(self) -> float:
        """The time at which on_deadline() is due (monotonic seconds): earlier than the group's deadline where the
        current call hangs before that."""
        call = self.current_call
        return min(self._deadline, call.deadline) if call else self._deadline

    def start(self, host: Host, histories: Mapping[str, CounterHistory]) -> None:
        """Forks the process, if a probe has something to judge. `histories`: the counters' snapshots by probe. Raises
        OSError."""
        absent = [_why_absent(probe, host) for probe in self.probes]
        if all(absent):
            for reason in absent:
                self._record(Observation(Verdict.SKIPPED, reason))
            return
        self.pipe, write_end = os.pipe()
        try:
            pid = fork()
            if pid == 0:
                host.watchdog, host.ends_at, host.run = self._watchdog, self._deadline, partial(run, host)
                worker.run_and_exit(self.probes, host, histories, write_end, self._deadline - self._started)
            self.pid = pid
        finally:
            os.close(write_end)

    def read_answers(self) -> None:
        """Reads what the pipe holds. Each complete line is a probe's answer; where the pipe is closed before the last
        one the process has died."""
        data = os.read(self.pipe, 1 << 16)
        self._received += data
        while not self.finished and b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            try:
                self._record(wire.decode(bytes(line), Observation))
            except wire.WireError as error:
                self.fail(f"answered with garbage: {error}")
        if self.finished:
            return
        if not data:
            self.fail(f"gave no answer: {exit_reason(self.pid)}")
        elif len(self._received) > worker.MAX_ANSWER_BYTES:
            self.fail(f"answered with more than {worker.MAX_ANSWER_BYTES} bytes")

    def on_deadline(self) -> None:
        """Ends the waiting. A process whose current call has exceeded its limit hangs; any other one is slow."""
        waited = time.monotonic() - self._started
        reason = f"probe {self._current_probe.name} gave no answer in {waited:.1f} s and was killed"
        call = self.current_call
        if call is None:
            self.fail(reason)
        elif time.monotonic() >= call.deadline:
            self._report_hang(self.pid, call)
        else:
            self._report_hang(self.pid, call, f"{reason}: {call.text} may take {call.limit_seconds:.0f} s")

    def on_stuck_predecessor(self, pid: int, call: AnnouncedCall | None) -> None:
        """Takes the place of start() where process `pid` of an earlier run survived SIGKILL: no second one joins it."""
        if call is not None and time.monotonic() >= call.deadline:
            self._report_hang(pid, call)
        else:
            self.fail(f"process {pid} of an earlier run is still stuck in the kernel")

    def _report_hang(self, pid: int, call: AnnouncedCall, reason: str = "") -> None:
        hang = inspect_hang(pid, call)
        reason = reason or f"{hang.call} gave no answer in {hang.seconds} s"
        on_hang = next((probe.on_hang for probe in self.probes if probe.on_hang), None)
        found = on_hang(hang) if on_hang else None
        self.fail(reason, (found,) if found else ())

    def fail(self, reason: str, findings: tuple[Finding, ...] = ()) -> None:
        """Makes the current probe and those after it unknown, for `reason`. `findings`: of the current one."""
        if not self._waits_alike:
            self.name = self._current_probe.name
        self._record(Observation(Verdict.UNKNOWN, reason, findings))
        while not self.finished:
            self._record(Observation(Verdict.UNKNOWN, f"was not reached: {reason}"))

    @property
    def _current_probe(self) -> Probe:
        return self.probes[len(self.answers)]

    def _record(self, observation: Observation) -> None:
        now = time.monotonic()
        self.answers.append(ProbeAnswer(self._current_probe.name, observation, now - self._last_answer))
        self._last_answer = now

    def close(self) -> None:
        """Closes the parent's end of the pipe. To be called once."""
        if self.pipe >= 0:
            os.close(self.pipe)


class Runner:
    """Runs probes again and again. It remembers the processes that could not be killed: where one is stuck in the
    kernel no second one is started."""

    def __init__(self) -> None:
        self._stuck = StuckProcesses()

    def run(
        self, host: Host, probes: Sequence[Probe], *, deadline_seconds: float, warnings_fail: bool = False
    ) -> Report:
        """The report of `probes`, made within `deadline_seconds` (plus at most 0.1 s to clean up), whatever they do.

        A critical finding fails its probe, and so the report; a warning does where `warnings_fail`.
        """
        started = time.monotonic()
        store = HistoryStore(host)
        if not host.recorded:
            self._stuck.load()
        histories = {probe.name: store.history(probe.name) for probe in probes}
        processes = [self._start(group, host, histories, started + deadline_seconds) for group in self._groups(probes)]
        try:
            _wait([process for process in processes if not process.finished])
        finally:
            self._end(processes, live=not host.recorded)
        by_name = {answer.name: answer for process in processes for answer in process.answers}
        answers = [by_name[probe.name] for probe in probes]
        return build_report(
            answers,
            node=host.node(),
            elapsed_seconds=time.monotonic() - started,
            facts=collect_facts(answers, store),
            warnings_fail=warnings_fail,
        )

    def _groups(self, probes: Iterable[Probe]) -> list[list[Probe]]:
        """Probes of the same group together, in order; every other probe alone, and one that is stuck. Those that may
        take longest come first, so that the others run beside them."""
        groups: dict[str, list[Probe]] = {}
        for probe in probes:
            group = probe.group
            alone = group is None or not group.waits_alike and self._stuck.find(probe.name)
            groups.setdefault(probe.name if alone or not group else f"group {group.name}", []).append(probe)
        return sorted(groups.values(), key=_seconds, reverse=True)

    def _start(
        self, group: Sequence[Probe], host: Host, histories: Mapping[str, CounterHistory], deadline: float
    ) -> ProbeProcess:
        process = ProbeProcess(group, min(deadline, time.monotonic() + _seconds(group)))
        stuck = self._stuck.find(process.name)
        if stuck is not None:
            process.on_stuck_predecessor(stuck.pid, stuck.call)
            return process
        try:
            process.start(host, histories)
        except OSError as error:
            process.fail(f"could not be started: {error.strerror}")
        return process

    def _end(self, processes: Iterable[ProbeProcess], live: bool) -> None:
        running = {process.pid: process for process in processes if process.pid}
        for process in processes:
            process.close()
        for pid in running:
            kill_group(pid)
        stuck = {running[pid].name: (pid, running[pid].current_call) for pid in reap(running)}
        left = ((each.name, answer.observation.left) for each in processes for answer in each.answers)
        stuck.update({name: (pid, None) for name, pid in left if pid})
        self._stuck.add(stuck, save=live)


def run(host: Host, probes: Sequence[Probe], *, deadline_seconds: float, warnings_fail: bool = False) -> Report:
    """The report of a single run. A daemon keeps a Runner instead."""
    return Runner().run(host, probes, deadline_seconds=deadline_seconds, warnings_fail=warnings_fail)


def _seconds(group: Sequence[Probe]) -> float:
    return max(probe.group.deadline_seconds if probe.group else probe.deadline_seconds for probe in group)


def _why_absent(probe: Probe, host: Host) -> str:
    """The reason why the probe has nothing to judge; empty where its check has to see."""
    try:
        if probe.needs:
            probe.needs(host, probe.thresholds)
    except NotApplicable as error:
        return str(error)
    except Exception:
        pass  # the check, in a process of its own, says what is wrong
    return ""


def collect_facts(answers: Sequence[ProbeAnswer], store: HistoryStore) -> dict[str, Any]:
    """The facts that the probes read, by probe, and what their counters were compared with. They say once that counters
    cannot be saved."""
    facts = {answer.name: answer.observation.facts for answer in answers}
    counters = {it.name: it.observation.counters for it in answers if it.observation.counters is not None}
    why_not_saved = store.save(counters)
    for name in () if why_not_saved else counters:
        facts[name] = {**facts[name], "last_look": store.history(name).description}
    return {
        **{name: values for name, values in facts.items() if values},
        **({"runner": {"last_look": why_not_saved}} if why_not_saved else {}),
    }


def _wait(processes: Iterable[ProbeProcess]) -> None:
    """Reads answers until each process is finished: by its last answer, its death or its deadline."""
    waiting = {process.pipe: process for process in processes}
    poller = select.poll()
    for pipe in waiting:
        poller.register(pipe, select.POLLIN)
    while waiting:
        seconds = min(process.deadline for process in waiting.values()) - time.monotonic()
        for pipe, _ in poller.poll(max(0.0, min(seconds, _WATCHDOG_SECONDS)) * 1000):
            waiting[pipe].read_answers()
        for pipe, process in list(waiting.items()):
            if not process.finished and time.monotonic() >= process.deadline:
                process.on_deadline()
            if process.finished:
                poller.unregister(pipe)
                del waiting[pipe]
