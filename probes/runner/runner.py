"""Runs probes, each group in a process of its own, and makes the node's report. Deadlines and errors are handled here
alone.

A probe may ask a driver or a dead server and never return, not even on SIGKILL. So no probe runs in the process that
answers: it runs in a forked one, which is read until its deadline, killed, and not waited for.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from laggard.model import Report
from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.runner.history_store import HistoryStore
from laggard.probes.runner.process import ProbeProcess
from laggard.probes.runner.reaper import kill_group, reap
from laggard.probes.runner.report import ProbeAnswer, build_report
from laggard.probes.runner.stuck import StuckProcesses


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
        processes = [self._start(group, host, histories, started + deadline_seconds) for group in _groups(probes)]
        try:
            _wait([process for process in processes if not process.finished])
        finally:
            self._end(processes, live=not host.recorded)
        by_name = {answer.name: answer for process in processes for answer in process.answers()}
        answers = [by_name[probe.name] for probe in probes]
        return build_report(
            answers,
            node=host.node(),
            elapsed_seconds=time.monotonic() - started,
            facts=collect_facts(answers, store),
            warnings_fail=warnings_fail,
        )

    def _start(
        self, group: Sequence[Probe], host: Host, histories: Mapping[str, CounterHistory], deadline: float
    ) -> ProbeProcess:
        seconds = max(probe.group.deadline_seconds if probe.group else probe.deadline_seconds for probe in group)
        process = ProbeProcess(group, min(deadline, time.monotonic() + seconds))
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
        self._stuck.add(stuck, save=live)


def run(host: Host, probes: Sequence[Probe], *, deadline_seconds: float, warnings_fail: bool = False) -> Report:
    """The report of a single run. A daemon keeps a Runner instead."""
    return Runner().run(host, probes, deadline_seconds=deadline_seconds, warnings_fail=warnings_fail)


def _groups(probes: Sequence[Probe]) -> list[list[Probe]]:
    """Probes of the same group together, in order; every other probe alone."""
    groups: dict[str, list[Probe]] = {}
    for probe in probes:
        groups.setdefault(f"group {probe.group.name}" if probe.group else probe.name, []).append(probe)
    return list(groups.values())


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
        seconds = min(process.next_check for process in waiting.values()) - time.monotonic()
        for pipe, _ in poller.poll(max(0.0, seconds) * 1000):
            waiting[pipe].read_answers()
        for pipe, process in list(waiting.items()):
            if not process.finished and time.monotonic() >= process.deadline:
                process.on_deadline()
            if process.finished:
                poller.unregister(pipe)
                del waiting[pipe]
