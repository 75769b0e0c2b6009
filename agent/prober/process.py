"""The agent's side of the prober, the helper process that runs the probes (worker.py).

Probes run in forked children, and forking a process that has threads is unsafe: the agent has threads, the prober has
none. The prober is a fresh interpreter, not a fork of the agent, so that it can be started again at any time.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from laggard.kit.processes import own_process
from laggard.model import ProbeResult, Report, worst
from laggard.wire import WireError, decode

MAX_BYTES: Final = 4 << 20

_EXIT_SECONDS: Final = 0.3


class ProberError(Exception):
    """There is no report. The text says why."""


class Prober:
    """The helper process. It starts at the first round, and again after it ended or was killed for not answering."""

    def __init__(self, command: Sequence[str], node: str, deadline_seconds: float) -> None:
        self._command = tuple(command)
        self._node = node
        self._deadline_seconds = deadline_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run_probes(self) -> Report:
        """Runs one round of probes in the helper, with the gate's variants. Raises ProberError."""
        return self._run(b"round\n")

    def run_variants(self) -> Report:
        """Runs the gate's variants alone. Raises ProberError."""
        return self._run(b"variants\n")

    def _run(self, request: bytes) -> Report:
        process = self._running_process()
        try:
            assert process.stdin is not None
            process.stdin.write(request)
            report = decode(_read_line(process, self._deadline_seconds), Report)
        except WireError as error:
            raise self._abandon(process, f"the prober's answer is no report: {error}") from None
        except TimeoutError:
            reason = f"the prober did not answer within {self._deadline_seconds:g} s and was killed"
            raise self._abandon(process, reason) from None
        except (OSError, EOFError, ValueError):
            raise self._abandon(process, f"the prober ended: {_exit_reason(process)}") from None
        return structs.replace(report, node=self._node)

    def stop(self) -> None:
        """Ends the helper and its probes. It is not started again."""
        with self._lock:
            self._stopped = True
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # the helper then ends its probes, and itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_SECONDS)
        _kill(process)

    def _running_process(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise ProberError("the agent is stopping")
            if self._process is None:
                self._process = _start(self._command)
            return self._process

    def _abandon(self, process: subprocess.Popen[bytes], reason: str) -> ProberError:
        """Kills the helper and returns the error to raise."""
        _kill(process)
        with self._lock:
            self._process = None
        return ProberError(f"{reason}; the next round starts another")


def prober_command(profile: str) -> tuple[str, ...]:
    return own_process("laggard.agent.prober.worker", profile)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the helper in a session of its own: a terminal's Ctrl-C reaches the agent alone, which then ends the
    helper. In `/`, which no user can take away."""
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, cwd="/"
        )
    except OSError as error:
        raise ProberError(f"cannot start the prober {command[0]}: {error.strerror}") from None


def _read_line(process: subprocess.Popen[bytes], timeout_seconds: float) -> bytes:
    """Raises TimeoutError; EOFError where the helper closed its output; WireError where a line is longer than a report
    can be."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_seconds
    line = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), 65_536)
            if not chunk:
                raise EOFError
            line += chunk
            if len(line) > MAX_BYTES:
                raise WireError(f"more than {MAX_BYTES} bytes")
    return bytes(line)


def _exit_reason(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "it closed its output"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the helper's process group, if it still runs. Probes have process groups and alarms of their own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


# The gate's variants of probes in the agent's rounds: what of a report is the agent's, and what a prolog is told.

PREFIX: Final = "gate:"


class KnownProbes(NamedTuple):
    """`fingerprint`: of what a prolog asks about this node. `gate`: the probes that it asks for; `variants`: those of
    them that it judges otherwise than the agent, or that the agent does not run."""

    fingerprint: str
    gate: frozenset[str]
    variants: frozenset[str]


class Refused(msgspec.Struct, frozen=True):
    """Why the agent's profile cannot be used."""

    message: str


def split(report: Report) -> tuple[Report, Report]:
    """What the agent reports, and what the gate's variants found, under the names that the gate has for them."""
    variants = [result for result in report.probes if result.name.startswith(PREFIX)]
    others = [result for result in report.probes if not result.name.startswith(PREFIX)]
    facts = report.facts
    return (
        _part(report, others, {name: value for name, value in facts.items() if not name.startswith(PREFIX)}),
        _part(
            report,
            [structs.replace(result, name=result.name.removeprefix(PREFIX)) for result in variants],
            {name.removeprefix(PREFIX): value for name, value in facts.items() if name.startswith(PREFIX)},
        ),
    )


def _part(report: Report, results: Sequence[ProbeResult], facts: dict[str, Any]) -> Report:
    """The report of `results` alone."""
    kept = sorted(place for result in results for place in result.findings)
    moved = {place: number for number, place in enumerate(kept)}
    return structs.replace(
        report,
        verdict=worst(result.verdict for result in results),
        probes=tuple(
            structs.replace(result, findings=tuple(moved[place] for place in result.findings)) for result in results
        ),
        findings=tuple(report.findings[place] for place in kept),
        facts=facts,
    )
