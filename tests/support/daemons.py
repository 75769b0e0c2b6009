"""Daemons and commands of laggard as processes, as a user starts them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.waiting import PATIENCE_SECONDS, wait_for


def laggard(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """`laggard WORDS`, run to its end."""
    command, own = [sys.executable, "-m", "laggard", *map(str, words)], {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=own)


class Daemon:
    """`laggard WORDS`, on a free port where they say none, which listens by now. What it says is in the file `log`.
    `python`: how Python is started, and by which words."""

    def __init__(
        self,
        log: Path,
        words: Sequence[str],
        environ: Mapping[str, str],
        python: Sequence[str] = (sys.executable, "-m", "laggard"),
    ) -> None:
        own = () if "--web.listen-address" in words else ("--web.listen-address", "127.0.0.1:0")
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen([*python, *words, *own], stderr=stderr, env={**os.environ, **environ})
        self.wait_until(lambda: "listening on " in self.said())
        found = re.search(r"listening on (https?://(?:[\d.]+|\[[\da-f:]+\]):(\d+))", self.said())
        assert found, self.said()
        self.url, self.port = found[1], int(found[2])

    def said(self) -> str:
        return self.log.read_text()

    def wait_until(self, condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        def holds() -> object:
            assert self.process.poll() is None, f"it died: {self.said()}"
            return condition()

        wait_for(holds, self.said, seconds)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit status."""
        self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
