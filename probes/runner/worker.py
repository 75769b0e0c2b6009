"""The code that runs inside a probe's process: the probes, their answers, and the exit. No caller's code runs after
it."""

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
from laggard.probes.errors import NotApplicable, Unknown, Unreadable, first_reasons
from laggard.probes.host.counter_history import CounterHistory, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe

MAX_ANSWER_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1000
_PIPE: Final = 3
_LAST_RESORT_SECONDS: Final = 1.0


class Observation(msgspec.Struct, frozen=True):
    """The result of one probe. It crosses the pipe as one line of JSON. `verdict` is ok, skipped or unknown: the parent
    decides whether the findings make it a failure. `counters`: what the probe wants saved; `left`: see Host."""

    verdict: Verdict
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = {}
    counters: dict[str, int] | None = None
    left: int = 0


def run_and_exit(
    probes: Sequence[Probe], host: Host, histories: Mapping[str, CounterHistory], pipe: int, seconds: float
) -> NoReturn:
    """Runs `probes` in turn and exits. One answer for each goes to `pipe`; after `seconds` the parent no longer reads
    it. `histories`: the counters' snapshots by probe."""
    status = 1
    try:
        _detach(pipe, seconds)
        host.supervised = True
        for probe in probes:
            host.counter_history = histories[probe.name]
            _send(encode(observe(probe, host)))
        status = 0
    finally:
        os._exit(status)  # the interpreter's exit belongs to the parent: its handlers, its buffers


def _detach(pipe: int, seconds: float) -> None:
    """Keeps nothing of the parent's open: a stuck process must not hold a prolog's output or a daemon's port."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # Ends this process where the parent died without ending it.
    signal.setitimer(signal.ITIMER_REAL, seconds + _LAST_RESORT_SECONDS)
    pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _PIPE + 1)  # out of the way of the next lines
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(_PIPE):
        os.dup2(null, stream)
    os.dup2(pipe, _PIPE, inheritable=False)
    sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)  # the parent's may write to a descriptor of its own
    os.closerange(_PIPE + 1, os.sysconf("SC_OPEN_MAX"))


def observe(probe: Probe, host: Host) -> Observation:
    """Runs `probe` in this process. Raises nothing: whatever the probe raises is part of the observation."""
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    counters: dict[str, int] | None = None
    unreadable: list[Unreadable] = []
    verdict, reason = Verdict.OK, ""
    try:
        for count, item in enumerate(probe.check(host, probe.thresholds)):
            if count == MAX_ITEMS:
                raise Unknown(f"yielded more than {MAX_ITEMS} findings and facts")
            if isinstance(item, Finding):
                findings.append(item)
            elif isinstance(item, Fact):
                facts[item.name] = item.value
            elif isinstance(item, Unreadable):
                unreadable.append(item)
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
    if unreadable and verdict is not Verdict.UNKNOWN:
        verdict, reason = Verdict.UNKNOWN, first_reasons(unreadable)
    return Observation(verdict, reason, tuple(findings), facts, counters, host.left)


def encode(observation: Observation) -> bytes:
    """The line of JSON for `observation`. What cannot be sent becomes unknown."""
    try:
        line = wire.encode(observation)
    except Exception as error:  # a fact that is no JSON value
        line = _unknown(f"answered with a value that is no JSON: {error}")
    if len(line) > MAX_ANSWER_BYTES:
        line = _unknown(f"answered with {len(line)} bytes, more than {MAX_ANSWER_BYTES}")
    return line + b"\n"


def _unknown(reason: str) -> bytes:
    return wire.encode(Observation(Verdict.UNKNOWN, reason))


def _send(line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[os.write(_PIPE, view) :]
