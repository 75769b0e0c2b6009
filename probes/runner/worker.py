"""The inside of a probe's process: run it, say what it saw, be gone. Nothing here returns to the caller's code."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from laggard import wire
from laggard.model import Finding, Verdict
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.counter_history import CounterHistory, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe

MOST_ANSWER_BYTES: Final = 1 << 20
MOST_ITEMS: Final = 1000
_PIPE: Final = 3
_LAST_RESORT_SECONDS: Final = 1.0


class Observation(msgspec.Struct, frozen=True):
    """What comes back over the pipe, as one line of JSON. `verdict` is ok, skipped or unknown: whether the findings
    make it a failure is for the reader to judge."""

    verdict: Verdict
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = {}
    counters: dict[str, int] | None = None


def live(
    probes: Sequence[Probe], host: Host, histories: Mapping[str, CounterHistory], pipe: int, seconds: float
) -> NoReturn:
    """The whole life of the process of one probe or of a group: `pipe` takes one answer for each; after `seconds` the
    parent no longer listens."""
    status = 1
    try:
        _leave_home(pipe, seconds)
        for probe in probes:
            host.counter_history = histories[probe.name]
            _send(encode(observe(probe, host)))
        status = 0
    finally:
        os._exit(status)  # the interpreter's exit belongs to the parent: its handlers, its buffers


def _leave_home(pipe: int, seconds: float) -> None:
    """Keep nothing of the parent's: a stuck process must not hold a prolog's output or a daemon's port open."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # Ends this process when the parent died without ending it.
    signal.setitimer(signal.ITIMER_REAL, seconds + _LAST_RESORT_SECONDS)
    pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _PIPE + 1)  # out of the way of what follows
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(_PIPE):
        os.dup2(null, stream)
    os.dup2(pipe, _PIPE, inheritable=False)
    sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)  # the parent's may write to a descriptor of its own
    os.closerange(_PIPE + 1, os.sysconf("SC_OPEN_MAX"))


def observe(probe: Probe, host: Host) -> Observation:
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    counters: dict[str, int] | None = None
    verdict, reason = Verdict.OK, ""
    try:
        for count, item in enumerate(probe.check(host, probe.thresholds)):
            if count == MOST_ITEMS:
                raise Unknown(f"yielded more than {MOST_ITEMS} findings and facts")
            if isinstance(item, Finding):
                findings.append(item)
            elif isinstance(item, Fact):
                facts[item.name] = item.value
            elif isinstance(item, SaveCounters):
                counters = {**(counters or {}), **item.counters}
            else:
                raise Unknown(f"yielded a {type(item).__name__}, neither a finding nor a fact")
    except NotApplicable as error:
        verdict, reason = (Verdict.OK if findings else Verdict.SKIPPED), str(error)
    except Unknown as error:
        verdict, reason = Verdict.UNKNOWN, str(error)
    except BaseException as error:  # a probe may raise anything, SystemExit too; none of it is an answer
        verdict, reason = Verdict.UNKNOWN, f"failed: {type(error).__name__}: {error}"
    return Observation(verdict, reason, tuple(findings), facts, counters)


def encode(observation: Observation) -> bytes:
    try:
        line = wire.encode(observation)
    except Exception as error:  # a fact that is no JSON value
        line = _nothing(f"answered with what is no JSON: {error}")
    if len(line) > MOST_ANSWER_BYTES:
        line = _nothing(f"answered with {len(line)} bytes, more than {MOST_ANSWER_BYTES}")
    return line + b"\n"


def _nothing(reason: str) -> bytes:
    return wire.encode(Observation(Verdict.UNKNOWN, reason))


def _send(line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[os.write(_PIPE, view) :]
