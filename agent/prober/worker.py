"""The agent's helper process: `python -m laggard.agent.prober.worker PROFILE`. It reads one line for each round of
probes (`variants`: of the gate's variants alone) and answers with one line, the report. It has one thread, so that its
probes can be forked. It ends when the agent closes its input or ends."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys

from laggard.agent.prober.known import stricter_probes
from laggard.probes.choose import choose_probes
from laggard.probes.host import reader
from laggard.probes.host.host import Host
from laggard.probes.profiles import find_profile
from laggard.probes.runner.runner import Runner
from laggard.wire import encode

_REQUESTS, _REPORTS = 0, 1

IMPORTED_AHEAD = (ctypes, reader)
"""The modules that probes import when they need them, because a single health check mostly does not: here each round's
forks would import them again, for 7 ms of CPU time in each (sockets alone)."""


def main(profile_name: str) -> None:
    profile = find_profile(profile_name)
    probes = choose_probes(profile, (), (), f"profile {profile_name}")
    variants = stricter_probes(probes)
    reports = _redirect_output()
    _exit_with_agent()
    host, runner = Host(), Runner()  # one runner for all rounds: it knows which probes of earlier rounds are stuck
    while request := os.read(_REQUESTS, 4096):  # none at the end of the input
        host.remember_kernel_log()
        report = runner.run(
            host,
            variants if request == b"variants\n" else (*probes, *variants),
            deadline_seconds=profile.deadline_seconds,
            warnings_fail=profile.warnings_fail,
        )
        _send(reports, encode(report) + b"\n")


def _redirect_output() -> int:
    """Redirects standard output to standard error, which is the agent's log: whatever prints must not reach the agent.
    Returns the descriptor for reports."""
    reports = os.dup(_REPORTS)
    os.dup2(sys.stderr.fileno(), _REPORTS)
    return reports


def _exit_with_agent() -> None:
    """Makes the kernel send SIGIO at the end of the input, so that the helper ends at once, also in the middle of a
    round. (PR_SET_PDEATHSIG would come when the agent's thread that started the helper ends.)"""
    signal.signal(signal.SIGIO, _on_input)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # inherited from the agent, whose threads block its signals
    fcntl.fcntl(_REQUESTS, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(_REQUESTS, fcntl.F_SETFL, fcntl.fcntl(_REQUESTS, fcntl.F_GETFL) | os.O_ASYNC)


def _on_input(*_: object) -> None:
    poller = select.poll()
    poller.register(_REQUESTS, 0)
    if poller.poll(0):  # hung up
        raise SystemExit(0)  # through the runner, which ends the probes that it has started


def _send(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main(sys.argv[1])
