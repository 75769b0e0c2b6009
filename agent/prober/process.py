"""The agent's side of its prober: a helper process that runs the probes.

Probes run in forked children, and forking a process that has threads is unsafe: the agent has threads, the prober
has none. It is a fresh interpreter rather than a fork of the agent, so that it can be started again at any time.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from laggard.model import Report
from laggard.wire import WireError, decode

MOST_BYTES: Final = 4 << 20


class ProberError(Exception):
    """There is no report. The text says why."""


class Prober:
    """Starts the helper when it is first asked, and again after it died or was killed for its silence."""

    def __init__(self, command: Sequence[str], node: str, deadline_seconds: float) -> None:
        self._command = tuple(command)
        self._node = node
        self._deadline_seconds = deadline_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def ask(self) -> Report:
        """One round of probes. Raises ProberError."""
        process = self._started()
        try:
            _write(process, b"round\n")
            report = decode(_read_line(process, self._deadline_seconds), Report)
        except WireError as error:
            raise self._given_up(process, f"the prober's answer is no report: {error}") from None
        except TimeoutError:
            reason = f"the prober did not answer within {self._deadline_seconds:g} s and was killed"
            raise self._given_up(process, reason) from None
        except (OSError, EOFError, ValueError):
            raise self._given_up(process, f"the prober ended: {_how_it_ended(process)}") from None
        return structs.replace(report, node=self._node)

    def stop(self) -> None:
        """Ends the helper and its probes. It is not started again."""
        with self._lock:
            self._stopped = True
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # at which it ends its probes, and itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
        _end(process)

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise ProberError("the agent is stopping")
            if self._process is None:
                self._process = _start(self._command)
            return self._process

    def _given_up(self, process: subprocess.Popen[bytes], reason: str) -> ProberError:
        _end(process)
        with self._lock:
            self._process = None
        return ProberError(f"{reason}; the next round starts another")


def prober_command(profile: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "laggard.agent.prober.worker", profile)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own: a terminal's Ctrl-C is for the agent, which ends it. In `/`: `python -m` imports from
    the working directory first, and that may be anybody's."""
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, cwd="/"
        )
    except OSError as error:
        raise ProberError(f"cannot start the prober: {error.strerror}") from None


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Raises TimeoutError; EOFError where the helper closed its end; WireError where it says more than a report can."""
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
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
            if len(line) > MOST_BYTES:
                raise WireError(f"more than {MOST_BYTES} bytes")
    return bytes(line)


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(0.3)
    except subprocess.TimeoutExpired:
        return "it closed its output"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Probes have process groups of their own, and alarms; what else the helper started goes with it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
