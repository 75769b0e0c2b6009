"""Jobs whose counters go on as time does, for a real Prometheus to scrape: `python -m support.live_series PORT`
serves them.

A GET of /metrics answers with all jobs. A PUT of /JOB with `ranks` and `slow` (comma separated) in its query begins a
job, a DELETE of it ends it, as where its agents are gone. The counters are functions of the time since a job began, so
that they are right however often this process is started again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from support.paths import TESTS
from support.prometheus_series import PHASES, RANKS_OF_NODE, WAIT

EXCESS = 0.03
"""The seconds that a slow rank takes longer in `forward`."""


class LiveJob(NamedTuple):
    """A synchronous job of one user, 1000. `began`: Unix time."""

    job_id: str
    ranks: int
    slow: tuple[int, ...]
    began: float


def exposition(jobs: list[LiveJob], now: float) -> str:
    return "".join(line for job in jobs for line in _lines(job, now))


def _lines(job: LiveJob, now: float) -> Iterator[str]:
    longest = sum(PHASES.values()) * 1.005 + (EXCESS if job.slow else 0.0)
    steps = max(0, int((now - job.began) / (longest + WAIT)))
    progressed = job.began + steps * (longest + WAIT)
    for rank in range(job.ranks):
        uneven = 1 + 0.005 * (rank * 7 % 11 - 5) / 5  # no two machines are quite the same
        phases = {name: seconds * uneven for name, seconds in PHASES.items()}
        phases["forward"] += EXCESS if rank in job.slow else 0.0
        node = rank // RANKS_OF_NODE
        labels = f'job_id="{job.job_id}",user="1000",rank="{rank}",instance="127.0.0.{node + 2}:1",job="laggard"'
        own = sum(seconds for name, seconds in phases.items() if name != "input")
        place = f',world_size="{job.ranks}",attempt="0",hostname="n{node}",local_rank="{rank % RANKS_OF_NODE}"'
        waits, in_group = longest + WAIT - sum(phases.values()), ',op="all_reduce",group="dp"'
        values = [
            ("steps_total", steps, ""),
            ("step_seconds_total", steps * (longest + WAIT), ""),
            ("own_seconds_total", steps * own, ""),
            ("input_seconds_total", steps * phases["input"], ""),
            *(("phase_seconds_total", steps * seconds, f',phase="{name}"') for name, seconds in phases.items()),
            ("collective_seconds_total", steps * waits, in_group),
            ("collectives_total", steps, in_group),
            ("last_progress_timestamp_seconds", progressed, ""),
            ("last_beat_timestamp_seconds", now, ""),
            ("in_flight_seconds", 0.0, ""),
            ("up", 1.0, ""),
            ("info", 1.0, place),
        ]
        for name, value, more in values:
            yield f"laggard_rank_{name}{{{labels}{more}}} {value:.15g}\n"


class _Handler(BaseHTTPRequestHandler):
    jobs: dict[str, LiveJob] = {}
    lock = threading.Lock()

    def do_GET(self) -> None:
        with self.lock:
            jobs = list(self.jobs.values())
        self._answer(exposition(jobs, time.time()))

    def do_PUT(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        name, slow = parts.path.strip("/"), query.get("slow", [""])[0]
        # It looks as if it had run for a while: a job's first minutes are no subject here.
        began = float(query.get("began", [str(time.time() - 60.0)])[0])
        job = LiveJob(name, int(query["ranks"][0]), tuple(map(int, filter(None, slow.split(",")))), began)
        with self.lock:
            self.jobs[name] = job
        self._answer("")

    def do_DELETE(self) -> None:
        with self.lock:
            self.jobs.pop(self.path.strip("/"), None)
        self._answer("")

    def _answer(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


class LiveSeries:
    """The process that serves them."""

    def __init__(self, port: int) -> None:
        self.port = port
        command, path = [sys.executable, "-m", "support.live_series", str(port)], {"PYTHONPATH": str(TESTS)}
        self._process = subprocess.Popen(command, env={**os.environ, **path})
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            assert time.monotonic() < deadline and self._process.poll() is None, "the series are not served"
            time.sleep(0.05)

    def begin(self, job_id: str, ranks: int, slow: tuple[int, ...] = ()) -> None:
        self._ask("PUT", f"{job_id}?ranks={ranks}&slow={','.join(map(str, slow))}")

    def end(self, job_id: str) -> None:
        self._ask("DELETE", job_id)

    def _ask(self, method: str, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=30):
            pass

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class LivePrometheus:
    """A real Prometheus that scrapes `port` each `interval` seconds, and may be killed and started again with what it
    has stored."""

    def __init__(self, folder: Path, port: int, own_port: int, interval: int = 1) -> None:
        self._folder, self.port, self.url = folder, own_port, f"http://127.0.0.1:{own_port}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(
            f"global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}\n"
            "scrape_configs:\n"
            "- {job_name: laggard, honor_labels: true, static_configs: [{targets: ['127.0.0.1:" + str(port) + "']}]}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = ["prometheus", f"--config.file={self._folder}/prometheus.yml", "--log.level=error"]
        command += [f"--storage.tsdb.path={self._folder}/data", f"--web.listen-address={self.url[7:]}"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def wait_ready(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
            assert time.monotonic() < deadline, "Prometheus does not start"
            time.sleep(0.1)

    def stop(self) -> None:
        """It hangs: its kernel takes what is sent, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler)
    server.serve_forever()
