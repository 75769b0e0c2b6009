"""The agent's part for prologs: the socket, and what the agent knows of itself, put together."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from laggard.agent.gate.server import Answer, GateServer, Question, open_listener
from laggard.agent.prober.loop import ROUND, VARIANTS, ProbeLoop, ProbeRound, uptime
from laggard.agent.prober.process import KnownProbes
from laggard.kit.processes import boot_id
from laggard.model import Finding, Report, Severity
from laggard.probes.profiles import gate_profile
from laggard.probes.runner.report import is_only_on, other_gpus, places_are_complete, with_lowered
from laggard.wire.accepted import Accepted, AcceptedError, find, lowered, read_accepted

# Decides whether the agent's last round stands for a prolog's own check. It can only say yes: whatever is wrong,
# missing, old or not known, the gate has to look itself. Pure.
#
# Yes means that `laggard healthcheck --profile prolog` would pass the job: each of its probes ran here within
# `agent_seconds`, with its thresholds, and none has a critical finding on what the job gets. Where the gate is stricter
# than the agent (prober/known.py) a warning that the agent has not counts, too: the agent is in no job, and a user's
# process on a GPU is a warning until it is known which job gets the GPU. What is unknown rejects no job, and so does
# not keep the agent from a yes.

BUSY: Final = "GPU_BUSY"


class Own(NamedTuple):
    """What the agent knows of itself: the fingerprint of what a prolog of its own version asks, the boot id of its
    start, the names of the probes that a prolog asks for and of those among them that run as variants, how old a report
    may be, and whether the kernel shows it all processes with their users: in a container, or with the mount option
    hidepid, it does not."""

    fingerprint: str
    boot: str
    probes: frozenset[str]
    variants: frozenset[str]
    max_age_seconds: float
    sees_processes: bool


class Now(NamedTuple):
    """Seconds since boot, and Unix time."""

    uptime: float
    clock: float


def quick_answer(
    question: Question, own: Own, latest: ProbeRound, now: Now, accepted: Sequence[Accepted] = ()
) -> Answer:
    """`accepted`: what root accepts on this node; it rejects no job at the gate, either."""
    if question.fingerprint != own.fingerprint:
        return _look("version")
    if question.boot != own.boot:
        return _look("boot")
    if not latest.complete:
        return _look("starting", ROUND)
    if now.clock < latest.finished_at or now.uptime < latest.ended:
        return _look("future", ROUND)
    age = max(now.clock - latest.finished_at, now.uptime - latest.ended)
    if age > own.max_age_seconds:
        return _look("old", ROUND)
    began = min(latest.began, latest.variants_began)
    if question.newer and began < question.newer + 1:
        return _look("changed", ROUND)
    is_accepted = partial(find, accepted, now=now.clock)
    return _judge(question, own, latest, is_accepted) or Answer(True, math.ceil(age))


def _judge(question: Question, own: Own, latest: ProbeRound, is_accepted: Callable[[Finding], object]) -> Answer | None:
    """None: nothing stands against the job."""
    report, variants = latest.report, latest.variants
    if not own.variants <= _names(variants) or not own.probes - own.variants <= _names(report):
        return _look("incomplete")
    if not (places_are_complete(report) and places_are_complete(variants)):
        return _look("incomplete")
    others = other_gpus(report, question.gpus)

    def counts(finding: Finding) -> bool:
        return not is_only_on(others, finding) and not is_accepted(finding)

    if any(it.severity is Severity.CRITICAL and counts(it) for it in report.findings):
        return _look("critical")
    if any(_is_more(it, report, own.sees_processes) and counts(it) for it in variants.findings):
        return _look("stricter", VARIANTS)
    return None


def _names(report: Report) -> frozenset[str]:
    return frozenset(result.name for result in report.probes)


def _is_more(finding: Finding, report: Report, sees_processes: bool) -> bool:
    """Whether a variant's finding says more than the agent's own probe does, and so may reject a job. A GPU's process
    that is no user's is a warning in a prolog, too."""
    if finding.severity is Severity.CRITICAL:
        return True
    if finding.code == BUSY and sees_processes and finding.evidence.get("of_users") == 0:
        return False
    told = {(it.code, it.device, it.severity) for it in report.findings}
    return finding.severity is Severity.WARNING and (finding.code, finding.device, finding.severity) not in told


def _look(reason: str, cure: str = "") -> Answer:
    return Answer(False, reason=reason, cure=cure)


log = logging.getLogger("laggard.agent")


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
    """Root's file of accepted findings, read anew each time. If it cannot be used, the log says so once."""

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
