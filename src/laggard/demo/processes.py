"""The demo's processes: started in groups of their own, their output kept, all ended when the demo ends."""

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

from laggard.demo.nodes import Node

LAGGARD = (sys.executable, "-m", "laggard")


class DemoError(Exception):
    """Something the demo started did not work. The text says what, and where its output is."""


class Processes:
    """Starts commands and remembers them. Use as a context manager."""

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
        self, name: str, command: Sequence[str], node: Node | None = None, extra: Mapping[str, str] | None = None
    ) -> None:
        """Starts `command` on `node`, here where that is None, with `extra` in its environment."""
        with open(self.logs / f"{name}.log", "wb") as log:
            self._running[name] = subprocess.Popen(
                [*(node.enter if node else ()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(extra or {})},
            )

    def output(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def listening(self, name: str, seconds: float = 20.0) -> str:
        """The URL that a daemon says it listens on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(r"listening on (http\S+)", self.output(name))
            if found:
                return found[1]
            if self._running[name].poll() is not None:
                break
            time.sleep(0.05)
        raise DemoError(f"the {name} did not start: {self.last_line(name)}")

    def done(self, names: Sequence[str]) -> bool:
        """Whether all of these have ended well. Raises DemoError for one that has not."""
        for name in names:
            status = self._running[name].poll()
            if status not in (None, 0):
                raise DemoError(f"{name} ended with status {status}: {self.last_line(name)}")
        return all(self._running[name].poll() == 0 for name in names)

    def must_run(self, *names: str) -> None:
        """Raises DemoError for a daemon that has ended."""
        for name in names:
            status = self._running[name].poll()
            if status is not None:
                raise DemoError(f"the {name} ended with status {status}: {self.last_line(name)}")

    def last_line(self, name: str) -> str:
        lines = [line for line in self.output(name).splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"
