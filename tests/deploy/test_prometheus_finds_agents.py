"""deploy/prometheus: a real Prometheus finds real agents, by the files of prometheus.yml and by the collector's list of
prometheus-http-sd.yml, and loses one that leaves."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.certificates import SECONDS, Daemon, Start
from support.paths import REPOSITORY
from support.scraping import Asked, prometheus, value_of

SHIPPED = REPOSITORY / "deploy" / "prometheus"
WAYS = {"by files": "prometheus.yml", "by the collector": "prometheus-http-sd.yml"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus here: apt-get install prometheus"),
]


def test_agents_are_found_by_files_and_by_the_collector(start: Start, tmp_path: Path) -> None:
    """One file lists the agents, for Prometheus and for the collector alike."""
    agents = [start("agent"), start("agent")]
    listed = tmp_path / "agents" / "all.yml"
    listed.parent.mkdir()
    list_agents(listed, agents)
    (tmp_path / "collector.yaml").write_text(
        f"target_files: [{listed}]\ndiscovery_interval_seconds: 0.2\ninterval_seconds: 0.2\nincidents_database: ''\n"
    )
    collector = start("collector", "--config", str(tmp_path / "collector.yaml"))
    with prometheus(tmp_path, [as_shipped(way, name, tmp_path, collector) for way, name in WAYS.items()]) as asked:
        for way in WAYS:
            wait_until(lambda way=way: up(asked, way) == {agent.url for agent in agents}, lambda: asked("targets"))
            assert value_of(asked, f'count(up{{job="{way}"}} == 1)') == 2
            assert value_of(asked, f'count(laggard_build_info{{job="{way}"}})') == 2
        list_agents(listed, agents[:1])
        for way in WAYS:
            wait_until(lambda way=way: up(asked, way) == {agents[0].url}, lambda: asked("targets"))


def list_agents(path: Path, agents: list[Daemon]) -> None:
    text = yaml.safe_dump([{"targets": [agent.url.removeprefix("http://") for agent in agents]}])
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def as_shipped(way: str, name: str, folder: Path, collector: Daemon) -> dict[str, Any]:
    """The job of the agents, with the test's own paths, addresses and a short interval."""
    text = (SHIPPED / name).read_text()
    text = text.replace("/etc/prometheus/laggard/", f"{folder}/").replace(
        "http://collector.example:19401", collector.url
    )
    (job,) = (each for each in yaml.safe_load(text)["scrape_configs"] if each["job_name"] == "laggard-agent")
    for each in (*job.get("http_sd_configs", ()), *job.get("file_sd_configs", ())):
        each["refresh_interval"] = "1s"
    return {**job, "job_name": way, "scrape_interval": "1s"}


def up(asked: Asked, way: str) -> set[str]:
    """The URLs that Prometheus scrapes with success."""
    with contextlib.suppress(OSError):
        active = asked("targets?state=active")["activeTargets"]
        mine = [each for each in active if each["scrapePool"] == way]
        return {each["scrapeUrl"].removesuffix("/metrics") for each in mine if each["health"] == "up"}
    return set()


def wait_until(condition: Callable[[], bool], told: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.2)
