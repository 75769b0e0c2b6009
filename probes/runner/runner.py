"""Runs probes, each group in a process of its own, and makes the node's report. The only owner of deadlines and
errors.

A probe may ask a driver or a dead server and never come back, not even for SIGKILL. So no probe runs in the process
that answers: it is forked, listened to until its deadline, killed, and not waited for.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from laggard.model import Report, worst
from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.runner.history_store import HistoryStore
from laggard.probes.runner.process import Visit
from laggard.probes.runner.reaper import bury, end
from laggard.probes.runner.report import probe_results
from laggard.probes.runner.stuck import StuckProcesses
from laggard.probes.runner.worker import Observation


class Runner:
    """Remembers the processes that could not be killed: what is stuck in the kernel is not started a second time."""

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
            self._stuck.recall()
        histories = {probe.name: store.history(probe.name) for probe in probes}
        visits = [self._start(group, host, histories, started + deadline_seconds) for group in _groups(probes)]
        try:
            _listen([visit for visit in visits if not visit.done])
        finally:
            self._end(visits, live=not host.recorded)
        answers = {answer.name: answer for visit in visits for answer in visit.answers()}
        results = probe_results([answers[probe.name] for probe in probes], warnings_fail)
        seen = {probe.name: answers[probe.name].observation for probe in probes}
        return Report(
            verdict=worst(result.verdict for result in results),
            node=host.node(),
            elapsed_seconds=round(time.monotonic() - started, 4),
            probes=results,
            findings=tuple(finding for observation in seen.values() for finding in observation.findings),
            facts=_facts(seen, store),
        )

    def _start(
        self, group: Sequence[Probe], host: Host, histories: Mapping[str, CounterHistory], deadline: float
    ) -> Visit:
        seconds = max(probe.group.deadline_seconds if probe.group else probe.deadline_seconds for probe in group)
        visit = Visit(group, min(deadline, time.monotonic() + seconds))
        stuck = self._stuck.of(visit.name)
        if stuck is not None:
            visit.still_stuck(stuck.pid, stuck.doing)
            return visit
        try:
            visit.fork(host, histories)
        except OSError as error:
            visit.tell_nothing(f"could not be started: {error.strerror}")
        return visit

    def _end(self, visits: Iterable[Visit], live: bool) -> None:
        running = {visit.pid: visit for visit in visits if visit.pid}
        for visit in visits:
            visit.close()
        for pid in running:
            end(pid)
        undying = {running[pid].name: (pid, running[pid].doing) for pid in bury(running)}
        self._stuck.add(undying, keep=live)


def run(host: Host, probes: Sequence[Probe], *, deadline_seconds: float, warnings_fail: bool = False) -> Report:
    """One run, for a process that makes one. A daemon keeps a Runner."""
    return Runner().run(host, probes, deadline_seconds=deadline_seconds, warnings_fail=warnings_fail)


def _groups(probes: Sequence[Probe]) -> list[list[Probe]]:
    """Probes that name the same group together, in order; every other probe alone."""
    groups: dict[str, list[Probe]] = {}
    for probe in probes:
        groups.setdefault(f"group {probe.group.name}" if probe.group else probe.name, []).append(probe)
    return list(groups.values())


def _facts(seen: Mapping[str, Observation], store: HistoryStore) -> dict[str, Any]:
    """What the probes read, by probe, and what their counters were compared with. That no counters can be saved stands
    there once."""
    facts = {name: observation.facts for name, observation in seen.items()}
    counters = {name: it.counters for name, it in seen.items() if it.counters is not None}
    why_not = store.save(counters)
    for name in () if why_not else counters:
        facts[name] = {**facts[name], "last_look": store.history(name).description}
    return {
        **{name: values for name, values in facts.items() if values},
        **({"runner": {"last_look": why_not}} if why_not else {}),
    }


def _listen(visits: Iterable[Visit]) -> None:
    """Until each visit is done: by its answers, its death or its deadline."""
    waiting = {visit.pipe: visit for visit in visits}
    poller = select.poll()
    for pipe in waiting:
        poller.register(pipe, select.POLLIN)
    while waiting:
        seconds = min(visit.wake for visit in waiting.values()) - time.monotonic()
        for pipe, _ in poller.poll(max(0.0, seconds) * 1000):
            waiting[pipe].hear()
        for pipe, visit in list(waiting.items()):
            if not visit.done and time.monotonic() >= visit.until:
                visit.run_out()
            if visit.done:
                poller.unregister(pipe)
                del waiting[pipe]
