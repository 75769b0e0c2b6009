"""A real `laggard collector` in front of the fleet: started, killed, started again, asked, and looked at."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import psutil

MIB: Final = 1 << 20
_TIMEOUT_SECONDS: Final = 120.0
_ALL: Final = 4096  # more jobs than there are


class Usage(NamedTuple):
    """CPU seconds so far, and resident memory in MiB."""

    cpu: float
    memory: float


class Collector:
    """`folder`: where its configuration, incidents and log lie."""

    def __init__(self, folder: Path, targets: list[str], settings: Mapping[str, Any]) -> None:
        self._log = folder / "collector.log"
        self._config = folder / "collector.yaml"
        own = {"targets": targets, "listen_address": "127.0.0.1:0", "incidents_database": str(folder / "incidents")}
        self._config.write_text(json.dumps({**own, **settings}))
        self.start()

    def start(self) -> None:
        """Starts it; returns once it listens."""
        begin = self._log.stat().st_size if self._log.exists() else 0
        words = [sys.executable, "-P", "-m", "laggard", "collector", "--config", str(self._config)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=dict(os.environ))
        self._seen = psutil.Process(self.process.pid)
        deadline = time.monotonic() + 60
        while not (found := re.search(r"http://\S+", self._log.read_text()[begin:])):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the collector did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)
        self.url = found.group()

    def kill(self) -> None:
        """As the kernel does when memory is used up."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.kill()

    def usage(self) -> Usage:
        return Usage(sum(self._seen.cpu_times()[:2]), self._seen.memory_info().rss / MIB)

    def defects(self) -> int:
        """How often it wrote of a defect of its own."""
        text = self._log.read_text(errors="replace")
        return text.count("Traceback (most recent call last)") + text.count("a defect in laggard")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=_TIMEOUT_SECONDS) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        """0.0 where it has none yet."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=_TIMEOUT_SECONDS) as answer:
            text = answer.read().decode()
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def verdicts(self) -> dict[str, str]:
        """By the job's key."""
        return {job["key"]: job["verdict"] for job in self.get(f"/api/v1/summary?limit={_ALL}")["jobs"]}

    def age_seconds(self) -> float | None:
        """The age of what it shows; None before its first round."""
        found = self.get("/api/v1/summary?limit=1")["age_seconds"]
        return None if found is None else float(found)

    def location(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/api/v1/location?job={quote(key, safe='')}")
        return found

    def fresh_seconds(self, key: str) -> float:
        """How long an answer takes for which all agents are asked first. Waits before it, as two rounds are a second
        apart."""
        time.sleep(1.1)
        began = time.monotonic()
        self.get(f"/api/v1/location?fresh=1&job={quote(key, safe='')}")
        return time.monotonic() - began

    def open_incidents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        before = ""
        while True:
            document = self.get(f"/api/v1/incidents?open=1&limit=500{before}")
            found += document["incidents"]
            if document["next"] is None:
                return found
            before = f"&before={document['next']}"
