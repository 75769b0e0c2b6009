"""A real Prometheus and a real Alertmanager with the files of deploy/prometheus, and whom they tell."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.fronts import served_by
from support.paths import REPOSITORY
from support.ports import free_ports
from support.waiting import wait_for

FOLDER = REPOSITORY / "deploy" / "prometheus"

needs_alertmanager = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
    reason="needs prometheus and prometheus-alertmanager: scripts/setup --system installs them on Debian",
)


class Alerting:
    """Both run in `folder`. `told`: the alerts that the webhook got, in their order.
    `alertmanager`: its URL."""

    def __init__(self, folder: Path, webhook: str, told: list[dict[str, Any]]) -> None:
        self._folder, self._webhook, self.told = folder, webhook, told
        self._started: list[subprocess.Popen[bytes]] = []
        self.alertmanager = ""

    def start(self, **targets: str) -> None:
        """`targets`: HOST:PORT by the name of the scrape job, without its prefix `laggard-`."""
        prometheus, alertmanager = free_ports(2)
        self.alertmanager = f"http://127.0.0.1:{alertmanager}"
        self._configure(targets, alertmanager)
        self._run("prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=alerts",
                  f"--web.listen-address=127.0.0.1:{alertmanager}", "--cluster.listen-address=")  # fmt: skip
        self._run("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=series",
                  f"--web.listen-address=127.0.0.1:{prometheus}")  # fmt: skip

    def _configure(self, targets: dict[str, str], alertmanager: int) -> None:
        """What is shipped, with this machine's addresses in it, and patience of a second where it has minutes."""
        shipped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())
        for rule in (rule for group in alerts["groups"] for rule in group["rules"] if "for" in rule):
            rule["for"] = "1s"
        (self._folder / "alerts.yml").write_text(yaml.safe_dump(alerts))
        shipped["global"] = {"evaluation_interval": "1s"}
        shipped["rule_files"] = [str(FOLDER / "rules.yml"), "alerts.yml"]
        jobs = {job["job_name"].removeprefix("laggard-"): job for job in shipped["scrape_configs"]}
        shipped["scrape_configs"] = [
            {**job, "scrape_interval": "1s", "file_sd_configs": [], "static_configs": [{"targets": [targets[name]]}]}
            for name, job in jobs.items()
            if name in targets
        ]
        shipped["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]}
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(shipped))
        tells = yaml.safe_load((FOLDER / "alertmanager.yml").read_text())
        tells["route"] = {"receiver": "pager", "group_wait": "1s", "group_interval": "1s", "group_by": ["..."]}
        tells["receivers"] = [{"name": "pager", "webhook_configs": [{"url": f"{self._webhook}/"}]}]
        (self._folder / "alertmanager.yml").write_text(yaml.safe_dump(tells))

    def _run(self, *words: str) -> None:
        with (self._folder / f"{words[0]}.log").open("wb") as log:
            self._started.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=self._folder))

    def wait_for(self, name: str) -> Any:
        """Waits for an alert of that name at the webhook, and returns it."""

        def found() -> list[Any]:
            return [it for it in list(self.told) if it["labels"]["alertname"] == name and it["status"] == "firing"]

        return wait_for(found)[0]

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def alerting(tmp_path: Path) -> Iterator[Alerting]:
    told: list[dict[str, Any]] = []

    def webhook(path: str, body: bytes, headers: Any) -> tuple[int, bytes]:
        told.extend(json.loads(body)["alerts"])
        return 200, b""

    with served_by(webhook) as url:
        made = Alerting(tmp_path, url, told)
        yield made
        made.stop()
