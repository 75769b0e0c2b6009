"""The agent's part for prologs: the socket, and what the agent knows of itself, put together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from laggard.accepted import Accepted, AcceptedError, lowered, read_accepted
from laggard.agent.gate.listener import open_listener
from laggard.agent.gate.question import Answer, Question
from laggard.agent.gate.quick_answer import Now, Own, quick_answer
from laggard.agent.gate.server import GateServer
from laggard.agent.prober.loop import ProbeLoop, uptime
from laggard.agent.prober.variants import KnownProbes
from laggard.model import Report
from laggard.probes.gate_question import gate_profile
from laggard.probes.runner.report import with_lowered

log = logging.getLogger("laggard.agent")

_BOOT: str = "/proc/sys/kernel/random/boot_id"


@contextmanager
def answering_prologs(
    path: str, loop: ProbeLoop, probes: KnownProbes, accepted: Callable[[], tuple[Accepted, ...]]
) -> Iterator[None]:
    """Answers prologs at the socket `path` meanwhile; empty: none."""
    listener = open_listener(path) if path else None
    if listener is None:
        yield
        return
    own = own_facts(probes)

    def judge(question: Question) -> Answer:
        return quick_answer(question, own, loop.latest, Now(uptime(), time.time()), accepted())

    server = GateServer(listener, loop, judge)
    server.start()
    try:
        yield
    finally:
        server.stop()


class AcceptedFile:
    """What root accepts on this node, read anew each time. If the file cannot be used, the log says so once."""

    def __init__(self, path: str) -> None:
        self._path, self._problem = path, ""

    def get(self) -> tuple[Accepted, ...]:
        try:
            accepted, problem = read_accepted(self._path), ""
        except AcceptedError as error:
            accepted, problem = (), str(error)
        if problem and problem != self._problem:
            log.warning("nothing is accepted on this node: %s", problem)
        self._problem = problem
        return accepted

    def judged(self, report: Report, warnings_fail: bool) -> Report:
        """The report in which what is accepted now is marked, and fails nothing."""
        return with_lowered(report, lowered(report.findings, self.get(), time.time()), warnings_fail)


def own_facts(probes: KnownProbes) -> Own:
    return Own(
        fingerprint=probes.fingerprint,
        boot=boot_id(),
        probes=probes.gate,
        variants=probes.variants,
        max_age_seconds=gate_profile().agent_seconds,
        sees_processes=sees_processes(),
    )


def sees_processes() -> bool:
    """Whether the kernel shows all processes here: with number 2 its own thread kthreadd, which is in the first PID
    namespace alone, and which hidepid hides."""
    try:
        with open("/proc/2/comm", encoding="ascii") as file:
            return file.read().strip() == "kthreadd"
    except OSError:
        return False


def boot_id() -> str:
    with open(_BOOT, encoding="ascii") as file:
        return file.read().strip()
