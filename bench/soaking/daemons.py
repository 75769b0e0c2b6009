"""Daemons that are killed and started again at the same address, and how much each of them uses over time."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import psutil

LAGGARD = (sys.executable, "-m", "laggard")
CRASH_WORDS = ("Traceback (most recent call last)", "a defect in laggard")
_READY_SECONDS = 180.0


class Sample(NamedTuple):
    """Of a daemon and its children: memory that is theirs alone (bytes), open descriptors, threads; `seconds` since the
    soak began, `life` counts the daemon's starts."""

    seconds: float
    life: int
    memory: int
    descriptors: int
    threads: int


class Daemon:
    """One daemon. `path` is what it answers with 200 once it works; an end that nobody asked for is an entry of
    `crashes`."""

    def __init__(self, name: str, words: list[str], url: str, path: str, folder: Path, environment: dict[str, str]):
        self.name, self.url, self.log = name, url, folder / f"{name}.log"
        self._words, self._path, self._environment = words, path, {**os.environ, **environment}
        self.life = 0
        self.crashes: list[str] = []
        self.samples: list[Sample] = []
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.life += 1
        with self.log.open("ab") as log:
            return subprocess.Popen(self._words, stdout=log, stderr=log, env=self._environment)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self._path, timeout=10) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False

    def wait(self) -> bool:
        """Whether it answers within three minutes."""
        deadline = time.monotonic() + _READY_SECONDS
        while not self.answers():
            if time.monotonic() > deadline or not self.lives():
                return False
            time.sleep(0.2)
        return True

    def lives(self) -> bool:
        """Notes a crash, and starts the daemon again after one, so that the soak goes on."""
        if self.process.poll() is None:
            return True
        self.crashes.append(f"{self.name} ended by itself with status {self.process.returncode}")
        self.process = self._start()
        return False

    def kill(self) -> None:
        """As the kernel does when memory is used up."""
        self.lives()
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(children, timeout=30)  # a child must end by itself once its daemon is gone
        self.crashes += [f"{self.name} left a child behind when it was killed" for it in children if it.is_running()]

    def restart(self) -> None:
        self.process = self._start()

    def pause(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.crashes.append(f"{self.name} did not end within a minute of SIGTERM")
            self.process.kill()
            self.process.wait()

    def sample(self, seconds: float) -> None:
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            family = [own, *own.children(recursive=True)]
            self.samples.append(
                Sample(
                    seconds,
                    self.life,
                    sum(it.memory_full_info().uss for it in family),
                    sum(it.num_fds() for it in family),
                    sum(it.num_threads() for it in family),
                )
            )

    def tracebacks(self) -> list[str]:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [f"{self.name} wrote {word!r}, see {self.log}" for word in CRASH_WORDS if word in text]
