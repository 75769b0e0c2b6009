"""Evaluators, the Prometheus and the PostgreSQL that they share, and jobs to judge: all of it real, and any process of
it may be killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from support.cut_off import CutOff
from support.live_series import LivePrometheus, LiveSeries
from support.ports import free_port
from support.postgres import Server
from support.postgres import running as postgres_running

OWNER = 1000
SOCKET = ".s.PGSQL.5432"


class EvaluatorProcess:
    """`laggard collector` on a port of its own, with the same settings however often it is started."""

    def __init__(self, folder: Path, name: str, settings: dict[str, Any]) -> None:
        self.name, self.port = name, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._config, self._log = folder / f"{name}.yaml", folder / f"{name}.log"
        own = {"incidents_writer": name, "listen_address": f"127.0.0.1:{self.port}"}
        self._config.write_text(json.dumps(settings | own))
        self._client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "laggard", "collector", "--config", str(self._config)]
        environ = {**os.environ, "LAGGARD_STATE_DIR": "/nonexistent"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """As a service manager does."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self._client.close()
        self.kill()

    def get(self, path: str, **query: Any) -> Any:
        """The answer, as JSON; None where there is none."""
        with contextlib.suppress(httpx.HTTPError):
            found = self._client.get(f"/api/v1/{path}", params=query)
            return found.json() if found.status_code == 200 else None
        return None

    def is_ready(self) -> bool:
        """Whether a load balancer would send clients to it."""
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get("/-/ready").status_code == 200
        return False

    def metrics(self) -> str:
        return self._client.get("/metrics").text

    def log(self) -> str:
        """What it has written; nothing where it was never started."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def verdict(self, job: str) -> tuple[str, tuple[int, ...]] | None:
        """The verdict on a job, and the ranks of its culprits; None where the evaluator does not answer or does not
        know the job."""
        found = self.get("location", job=f"{OWNER}:{job}")
        if found is None or any(note["kind"] == "no_such_job" for note in found["notes"]):
            return None
        return found["verdict"], tuple(rank for culprit in found["culprits"] for rank in culprit["ranks"])

    def why(self, job: str) -> str:
        """The kinds of the notes on a job."""
        found = self.get("location", job=f"{OWNER}:{job}")
        return " ".join(note["kind"] for note in found["notes"]) if found else "no answer"

    def incidents(self, **query: Any) -> list[dict[str, Any]] | None:
        """All incidents, the newest first; None where its history does not answer."""
        found = self.get("incidents", limit=500, **query)
        if found is None or found["history"]["state"] != "on":
            return None
        incidents: list[dict[str, Any]] = found["incidents"]
        return incidents


class Fleet:
    """The whole of it. `evaluators` are running or not, as whoever uses it wants. The first one's way to Prometheus and
    to PostgreSQL can be cut."""

    def __init__(self, folder: Path, database: Server, count: int, **settings: Any) -> None:
        self.database = database
        self.series = LiveSeries(free_port())
        self.prometheus = LivePrometheus(folder / "prometheus", self.series.port, free_port())
        shared = {
            "targets": [],
            "prometheus": self.prometheus.url,
            "incidents_database": database.database(),
            "evaluators": "fleet",
            **settings,
        }
        way, port = Path(tempfile.mkdtemp(prefix="laggard-way-", dir="/tmp")), free_port()  # a short path, too
        self._way_folder = way
        self.to_prometheus = CutOff(("127.0.0.1", port), ("127.0.0.1", self.prometheus.port))
        self.to_database = CutOff(str(way / SOCKET), str(database.folder / SOCKET))
        url = shared["incidents_database"].replace(str(database.folder), str(way))
        by_them = {**shared, "prometheus": f"http://127.0.0.1:{port}", "incidents_database": url}
        self.evaluators = [
            EvaluatorProcess(folder, f"evaluator-{number}", shared if number else by_them) for number in range(count)
        ]

    def start(self) -> None:
        self.prometheus.wait_ready()
        for each in self.evaluators:
            each.start()

    @property
    def running(self) -> list[EvaluatorProcess]:
        return [each for each in self.evaluators if each.runs]

    def close(self) -> None:
        for each in self.evaluators:
            each.close()
        for way in (self.to_prometheus, self.to_database):
            way.close()
        shutil.rmtree(self._way_folder, ignore_errors=True)
        self.series.close()
        self.prometheus.kill()


@contextlib.contextmanager
def fleet(folder: Path, count: int = 3, **settings: Any) -> Iterator[Fleet]:
    """`settings`: more of the collectors'."""
    with postgres_running() as database:
        found = Fleet(folder, database, count, **settings)
        try:
            yield found
        finally:
            found.close()


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> float:
    """Returns how many seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError
        time.sleep(0.2)
    return time.monotonic() - began
