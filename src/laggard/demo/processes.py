"""The demo's processes: each starts in a session of its own and logs into a file; all end when the demo ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from laggard.demo.nodes import DemoNode

LAGGARD = (sys.executable, "-m", "laggard")


class DemoError(Exception):
    """A part of the demo failed. The text says which part and why."""


class Processes:
    """Starts commands under a name each. Use it as a context manager: leaving it ends them all."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for kill in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, kill)
            self._wait(3.0)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def start(
        self, name: str, command: Sequence[str], node: DemoNode | None = None, extra: Mapping[str, str] | None = None
    ) -> None:
        """Starts `command` on `node` (None: on this machine), with `extra` added to its environment."""
        with open(self.logs / f"{name}.log", "wb") as log:
            self._running[name] = subprocess.Popen(
                [*(node.command_prefix if node else ()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(extra or {})},
            )

    def output(self, name: str) -> str:
        """Everything that the process has written so far, to standard output and standard error."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def wait_for_url(self, name: str, seconds: float = 120.0) -> str:
        """Waits for a daemon to log the URL on which it listens, and returns that. Raises DemoError where the daemon
        ends before, or takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(r"listening on (http\S+)", self.output(name))
            if found:
                return found[1]
            if self._running[name].poll() is not None:
                break
            time.sleep(0.05)
        raise DemoError(f"the {name} did not start: {self.last_line(name)}")

    def all_finished(self, names: Sequence[str]) -> bool:
        """Whether all of these processes have ended. Raises DemoError for one that ended with an error."""
        for name in names:
            status = self._running[name].poll()
            if status not in (None, 0):
                raise DemoError(f"{name} ended with status {status}: {self.last_line(name)}")
        return all(self._running[name].poll() == 0 for name in names)

    def check_running(self, *names: str) -> None:
        """Raises DemoError where one of these daemons has ended."""
        for name in names:
            status = self._running[name].poll()
            if status is not None:
                raise DemoError(f"the {name} ended with status {status}: {self.last_line(name)}")

    def last_line(self, name: str) -> str:
        """The last line that the process has written."""
        lines = [line for line in self.output(name).splitlines() if line.strip()]
        return lines[-1] if lines else "without any output"
