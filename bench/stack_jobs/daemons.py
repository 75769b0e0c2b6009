"""The agent and the collector beside a training, and what the collector says while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from stack_jobs.judge import NOTES


class Daemons:
    """An agent that reads this folder's rank files, and its collector, which share a secret."""

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.write_text(secrets.token_urlsafe())
        token.chmod(0o600)
        self._config = folder / "daemon.json"
        self._config.write_text(json.dumps({"stacks_token_file": str(token)}))
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []
        agent = self._start("agent", "--node", "n0", "--rank-dir", str(folder / "ranks"))
        self.collector = self._start("collector", "--target", agent.removeprefix("http://"), "--interval", "1")

    def _start(self, name: str, *words: str) -> str:
        """Returns its URL."""
        command = [sys.executable, "-P", "-m", "laggard", name, "--config", str(self._config), *words]
        environment = {**os.environ, "LAGGARD_STATE_DIR": str(self._folder / name)}
        log = (self._folder / f"{name}.log").open("w+")
        with log:
            process = subprocess.Popen(
                [*command, "--web.listen-address", "127.0.0.1:0"], stdout=log, stderr=log, env=environment, text=True
            )
        self._started.append(process)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if found := re.search(r"listening on (http\S+)", (self._folder / f"{name}.log").read_text()):
                return found[1]
            time.sleep(0.05)
        self.end()
        raise SystemExit(f"laggard {name} does not start: {(self._folder / f'{name}.log').read_text()[-500:]}")

    def location(self) -> dict[str, Any] | None:
        """None while there is none."""
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"{self.collector}/api/v1/location", timeout=10) as answer,
        ):
            document: dict[str, Any] = json.load(answer)
            return document
        return None

    def end(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait(30)


class Looks(threading.Thread):
    """Looks at a collector once a second, until it is stopped. `seen`: each answer that differs from the one before in
    what it says of the code, or of whom."""

    def __init__(self, daemons: Daemons) -> None:
        super().__init__(daemon=True)
        self.seen: list[dict[str, Any]] = []
        self._daemons, self._over = daemons, threading.Event()

    def run(self) -> None:
        last: object = None
        while not self._over.wait(1.0):
            found = self._daemons.location()
            if found is None or found.get("verdict") not in ("ok", "fail", "unknown", "warning"):
                continue
            said = (found["verdict"], found["culprits"], [it for it in found["notes"] if it["kind"] in NOTES])
            if said != last and found.get("ranks", 1):
                last = said
                self.seen.append(found)

    def stop(self) -> None:
        self._over.set()
        self.join()
