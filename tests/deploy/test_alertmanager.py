"""From a rank that died to the page: a real collector, a real Prometheus with the rules that are shipped, and a real
Alertmanager with their inhibitions. The agent is a stand-in that answers as one."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs
from support.paths import REPOSITORY
from support.ports import free_ports

from laggard.model import RankEnd

FOLDER = REPOSITORY / "deploy" / "prometheus"
PATIENCE_SECONDS = 300.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
        reason="needs prometheus and prometheus-alertmanager: scripts/setup --system installs them on Debian",
    ),
]


class Pager(BaseHTTPRequestHandler):
    """Whom Alertmanager tells."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told.extend(body["alerts"])  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def pager() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pager) as server:
        server.told = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> None:
        with (tmp_path / f"{words[0]}.log").open("wb") as log:
            started.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=tmp_path))

    yield run
    for process in started:
        process.kill()
        process.wait()


def wait_for(what: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


def ask(url: str, body: Any = None) -> Any:
    """The answer's JSON; None where nobody answers yet."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "{}")
    except OSError:
        return None


def configure(folder: Path, collector: str, alertmanager: int, pager: int) -> None:
    """What is shipped, with this machine's addresses in it, and patience of a second where it has minutes."""
    shipped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    shipped["global"] = {"evaluation_interval": "1s"}
    shipped["rule_files"] = [str(FOLDER / name) for name in ("rules.yml", "alerts.yml")]
    (job,) = [it for it in shipped["scrape_configs"] if it["job_name"] == "laggard-collector"]
    shipped["scrape_configs"] = [
        {**job, "scrape_interval": "1s", "static_configs": [{"targets": [collector]}]},
    ]
    shipped["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(shipped))
    tells = yaml.safe_load((FOLDER / "alertmanager.yml").read_text())
    tells["route"] = {"receiver": "pager", "group_wait": "1s", "group_by": ["..."]}
    tells["receivers"] = [{"name": "pager", "webhook_configs": [{"url": f"http://127.0.0.1:{pager}/"}]}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(tells))


def test_a_rank_that_died_pages_somebody_once(
    fake_agent: Any, start_collector: Any, make: Any, pager: Any, start: Any, tmp_path: Path
) -> None:
    document = make.node("n0", [0, 1, 2, 3])
    end = RankEnd(time.time() - 5, 0.05, signal="SIGKILL")
    ranks = tuple(structs.replace(row, state="died", end=end) if row.rank == 2 else row for row in document.ranks)
    agent = fake_agent(structs.replace(document, ranks=ranks), make.report("n0"))
    collector = start_collector("--target", agent.address, "--interval", "0.5")
    prometheus, alertmanager = free_ports(2)
    configure(tmp_path, collector.url.removeprefix("http://"), alertmanager, pager.server_port)
    start("prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=alerts",
          f"--web.listen-address=127.0.0.1:{alertmanager}", "--cluster.listen-address=")  # fmt: skip
    start("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=series",
          f"--web.listen-address=127.0.0.1:{prometheus}")  # fmt: skip
    told = wait_for(lambda: [it for it in pager.told if it["labels"]["alertname"] == "LaggardRankDead"])
    labels, notes = told[0]["labels"], told[0]["annotations"]
    assert (labels["job_id"], labels["rank"], labels["severity"]) == ("job-1", "2", "critical")
    assert notes["summary"] == "Rank 2 of job job-1 died first, on n0."
    page, _, section = notes["runbook_url"].partition("#")
    assert f"\n## {section}\n" in (REPOSITORY / page).read_text().lower()
    _expect_one_page_for_one_cause(f"http://127.0.0.1:{alertmanager}", labels)


def _expect_one_page_for_one_cause(url: str, dead: dict[str, str]) -> None:
    """That the job's other ranks wait is told of no more; of another job it is."""
    stuck = [{"alertname": "LaggardRanksStuck", "job_id": job, "user": dead["user"]} for job in (dead["job_id"], "x")]
    wait_for(lambda: ask(f"{url}/api/v2/alerts", [{"labels": labels} for labels in stuck]) is not None)

    def states() -> dict[str, str] | None:
        alerts = [it for it in ask(f"{url}/api/v2/alerts") or () if it["labels"]["alertname"] == "LaggardRanksStuck"]
        found = {it["labels"]["job_id"]: it["status"]["state"] for it in alerts}
        return found if len(found) == 2 and "unprocessed" not in found.values() else None

    assert wait_for(states) == {dead["job_id"]: "suppressed", "x": "active"}
