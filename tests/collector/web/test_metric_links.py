"""Links to a site's Prometheus and Grafana: what they ask for is there, in a real Prometheus; without settings there
are none."""

import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from msgspec import structs
from support.browsing import Browsed, needs_chromium
from support.large_cluster import made_snapshot, served
from support.synthetic_fleet import NODES, fleet_in_prometheus

from laggard.collector.settings import CollectorSettings
from laggard.collector.web.metric_links import MetricLinks
from laggard.model import JobKey

SITE = CollectorSettings(prometheus_page="https://prometheus.example/base/", grafana_page="https://grafana.example")
HOSTILE = JobKey(1000, 'a"} or {b="\\')


def _asked(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


@pytest.mark.slow  # a Prometheus
@pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="NO PROMETHEUS: links to it are NOT tested; apt-get install prometheus",
)
def test_what_the_links_ask_for_is_in_prometheus(tmp_path: Path) -> None:
    links, job = MetricLinks(SITE), JobKey(1000, "a")
    with fleet_in_prometheus(tmp_path) as prometheus:
        found = {}
        for name, document in {
            "job": links.of_job(job),
            "rank": links.of_rank(job, 2),
            "node": links.of_node(NODES[1]),
            "hostile": links.of_job(HOSTILE),
        }.items():
            url = document.links[0].href
            assert url.startswith("https://prometheus.example/base/graph?")
            found[name] = prometheus.query(_asked(url)["g0.expr"])
    assert sorted(sample["metric"]["rank"] for sample in found["job"]) == ["0", "1", "2", "3"]
    assert {sample["metric"]["phase"] for sample in found["rank"]} >= {"input", "forward"}
    assert {sample["metric"]["instance"] for sample in found["node"]} == {NODES[1]}
    assert found["hostile"] == [], "a job's name is text, whatever it holds"


def test_grafana_gets_the_dashboard_its_variables_and_the_time() -> None:
    (_, now) = MetricLinks(SITE).of_job(HOSTILE).links
    assert now.href.startswith("https://grafana.example/d/laggard-job?")
    assert _asked(now.href) == {"var-job_id": HOSTILE.job_id, "var-user": "1000", "from": "now-3600s", "to": "now"}
    (graph, ended) = MetricLinks(SITE, ended_at=1_700_003_600.0).of_job(HOSTILE).links
    assert (_asked(ended.href)["from"], _asked(ended.href)["to"]) == ("1700000000000", "1700003600000")
    assert _asked(graph.href)["g0.end_input"] == "2023-11-14 23:13:20"


@pytest.mark.slow
@needs_chromium
def test_the_page_links_a_job_a_rank_and_a_node(browser: object) -> None:
    with served(made_snapshot(16, steps=60), structs.replace(SITE, prometheus_page="")) as url:
        browsed = Browsed(browser, f"{url}/#rank=3", ready="#rank-links a")
        assert browsed.page.locator("#job-links a").all_inner_texts() == ["Dashboard in Grafana"]
        browsed.page.goto(f"{url}/#node=gpu-0001")
        node = browsed.page.locator("#node-links a")
        node.wait_for()
        assert "var-instance=gpu-0001%3A19400" in str(node.get_attribute("href"))
        assert browsed.barriers() == [] and browsed.errors == []
    with served(made_snapshot(16, steps=60)) as url:
        told = [
            httpx.get(f"{url}/api/v1/links?{of}", trust_env=False).json() for of in ("job=", "rank=1", "node=gpu-0001")
        ]
        assert [each["links"] for each in told] == [[], [], []]
