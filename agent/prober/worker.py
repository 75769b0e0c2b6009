"""The agent's helper: `python -m laggard.agent.prober.worker PROFILE`. Reads one line for each round that is
wanted, answers with one line, the report. Single-threaded, so that its probes can be forked; ends with whoever holds
its input."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys

from laggard.probes.host.host import Host
from laggard.probes.profiles import choose_probes, find_profile
from laggard.probes.runner.runner import Runner
from laggard.wire import encode

_REQUESTS, _REPORTS = 0, 1


def main(profile_name: str) -> None:
    profile = find_profile(profile_name)
    probes = choose_probes(profile, (), (), f"profile {profile_name}")
    reports = _take_over_output()
    _end_with_the_agent()
    host, runner = Host(), Runner()  # the runner is kept: it remembers what is stuck
    while _requested():
        report = runner.run(
            host, probes, deadline_seconds=profile.deadline_seconds, warnings_fail=profile.warnings_fail
        )
        _send(reports, encode(report) + b"\n")


def _take_over_output() -> int:
    """Whatever prints goes to the log; the reports alone go to the agent."""
    reports = os.dup(_REPORTS)
    os.dup2(sys.stderr.fileno(), _REPORTS)
    return reports


def _end_with_the_agent() -> None:
    """The kernel signals the end of the input at once, also in the middle of a round. (PR_SET_PDEATHSIG would come
    when the thread that started us ends.)"""
    signal.signal(signal.SIGIO, _on_input)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the agent's threads leave its signals to one of them
    fcntl.fcntl(_REQUESTS, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(_REQUESTS, fcntl.F_SETFL, fcntl.fcntl(_REQUESTS, fcntl.F_GETFL) | os.O_ASYNC)


def _on_input(*_: object) -> None:
    poller = select.poll()
    poller.register(_REQUESTS, 0)
    if poller.poll(0):  # hung up
        raise SystemExit(0)  # through the runner, which ends the probes that it has started


def _requested() -> bool:
    return bool(os.read(_REQUESTS, 4096))


def _send(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main(sys.argv[1])
