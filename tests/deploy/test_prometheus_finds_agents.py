"""deploy/prometheus: a real Prometheus finds real agents, by the files of prometheus.yml and by the collector's list of
prometheus-http-sd.yml, and loses one that leaves; and with prometheus-tls.yml those that ask for its certificate."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.certificates import Files, Start
from support.daemons import Daemon
from support.paths import REPOSITORY
from support.scraping import Asked, prometheus, value_of
from support.waiting import wait_for

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
            wait_for(lambda way=way: up(asked, way) == {agent.url for agent in agents}, lambda: asked("targets"))
            assert value_of(asked, f'count(up{{job="{way}"}} == 1)') == 2
            assert value_of(asked, f'count(laggard_build_info{{job="{way}"}})') == 2
        list_agents(listed, agents[:1])
        for way in WAYS:
            wait_for(lambda way=way: up(asked, way) == {agents[0].url}, lambda: asked("targets"))


def test_with_its_certificate_it_is_let_in_and_without_it_is_not(files: Files, start: Start, tmp_path: Path) -> None:
    config = files.config(
        client_ca_file="ca.pem",
        client_auth_type="RequireAndVerifyClientCert",
        client_allowed_sans="[prometheus.example, collector.example]",
    )
    files.write("prometheus", files.authority.issue_cert("prometheus.example"))
    agent = start("agent", "--web.config.file", config)
    words = ("collector", "--interval", "1", "--target", agent.url, "--web.config.file", config)
    collector = start(*words, environ=files.environment("client"))
    (files.folder / "agents").mkdir()
    list_agents(files.folder / "agents" / "all.yml", [agent])
    text = (SHIPPED / "prometheus-tls.yml").read_text().replace("/etc/prometheus/laggard/", f"{files.folder}/")
    text = text.replace("collector.example:19401", collector.url.partition("//")[2])
    shipped = [{**job, "scrape_interval": "1s"} for job in yaml.safe_load(text)["scrape_configs"]]
    without = [
        {**job, "job_name": f"{job['job_name']} without", "tls_config": {"ca_file": job["tls_config"]["ca_file"]}}
        for job in shipped
    ]
    with prometheus(tmp_path, [*shipped, *without]) as asked:
        for name, daemon in (("laggard-agent", agent), ("laggard-collector", collector)):
            for way, health in ((name, "up"), (f"{name} without", "down")):
                wait_for(lambda way=way, health=health: up(asked, way, health), lambda: asked("targets"))
                assert up(asked, way, health) == {daemon.url}
        assert value_of(asked, 'count(laggard_build_info{job="laggard-agent"})') == 1


def list_agents(path: Path, agents: list[Daemon]) -> None:
    text = yaml.safe_dump([{"targets": [agent.url.partition("//")[2] for agent in agents]}])
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


def up(asked: Asked, way: str, health: str = "up") -> set[str]:
    """The URLs that Prometheus scrapes with success, or of another health."""
    with contextlib.suppress(OSError):
        active = asked("targets?state=active")["activeTargets"]
        mine = [each for each in active if each["scrapePool"] == way]
        return {each["scrapeUrl"].removesuffix("/metrics") for each in mine if each["health"] == health}
    return set()
