"""From the labels of a node to its team: a real collector, a real Prometheus with the rules that are shipped, and a
real Alertmanager with the routes of the example. Nodes have their labels of a file of the collector's, of its list of
agents, and of Kubernetes. The agents are stand-ins that serve what an agent serves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.alerting import Alerting, needs_alertmanager, wait_for
from support.chart import NO_HELM, rendered
from support.paths import REPOSITORY
from support.ports import free_port

from laggard.agent.prober.loop import ProbeRound
from laggard.agent.web.routes import agent_metrics

pytestmark = [pytest.mark.slow, needs_alertmanager]

BROKEN = "GPU_LOST"


def relabelings_of_the_page() -> list[dict[str, Any]]:
    """Those that docs/alerts.md adds to the PodMonitor, so that nodes' labels come along."""
    blocks = (REPOSITORY / "docs" / "alerts.md").read_text().split("```yaml\n")[1:]
    (block,) = (text for text in (it.partition("```")[0] for it in blocks) if "__meta_kubernetes_node_label" in text)
    found: list[dict[str, Any]] = yaml.safe_load(block)
    return found


def pods(folder: Path, agents: dict[str, dict[str, str]]) -> dict[str, Any]:
    """What Prometheus' operator makes of the PodMonitor, with a file in place of Kubernetes. `agents`: the labels of
    the node that each runs on, by address. The operator calls the job what `jobLabel` names, and writes the relabelings
    in Prometheus' own spelling (its documentation, RelabelConfig)."""
    pytest.importorskip("helm_python", reason=NO_HELM)
    (monitor,) = (it["spec"] for it in rendered({"podMonitor": True}) if it["kind"] == "PodMonitor")
    (endpoint,) = monitor["podMetricsEndpoints"]
    of_job = "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in monitor["jobLabel"])
    (folder / "pods.json").write_text(
        json.dumps(
            [
                {"targets": [address], "labels": {of_job: "laggard-agent", **labels}}
                for address, labels in agents.items()
            ]
        )
    )
    spelled = [
        {"source_labels": it["sourceLabels"], "target_label": it["targetLabel"]}
        for it in (*endpoint["relabelings"], *relabelings_of_the_page())
    ]
    return {
        "job_name": "podMonitor/laggard/laggard/0",
        "scrape_interval": "1s",
        "honor_labels": endpoint["honorLabels"],
        "file_sd_configs": [{"files": [str(folder / "pods.json")], "refresh_interval": "1s"}],
        "relabel_configs": [{"source_labels": [of_job], "target_label": "job"}, *spelled],
    }


def broken(fake_agent: Any, make: Any, name: str) -> Any:
    """An agent whose node has a critical finding, as its API and its metrics have it."""
    report = make.report(name, [BROKEN])
    agent = fake_agent(make.ranks_document(name, []), report)
    agent.metrics = agent_metrics(agent.ranks, ProbeRound(report, time.time(), complete=True), "")[0]
    return agent


def test_a_team_hears_of_its_nodes(
    fake_agent: Any, start_collector: Callable[..., Any], make: Any, alerting: Alerting, tmp_path: Path
) -> None:
    by_name, by_target, nobodys, pod = (broken(fake_agent, make, name) for name in ("v1", "v2", "n3", "v4"))
    gone = f"127.0.0.1:{free_port()}"
    listed = [
        {"targets": [by_target.address], "labels": {"team": "vision", "rack": "r2", "partition": "batch"}},
        {"targets": [by_name.address, nobodys.address]},
    ]
    (tmp_path / "agents.json").write_text(json.dumps(listed))
    named = [{"nodes": ["v1"], "labels": {"team": "vision", "rack": "r1", "partition": "batch,debug"}}]
    (tmp_path / "labels.yml").write_text(yaml.safe_dump(named))
    settings = {"target_files": [f"{tmp_path}/agents.json"], "node_labels_file": f"{tmp_path}/labels.yml"}
    settings |= {"incidents_database": "", "interval_seconds": 0.5, "discovery_interval_seconds": 0.5}
    (tmp_path / "collector.yaml").write_text(json.dumps(settings))
    collector = start_collector("--config", str(tmp_path / "collector.yaml"))
    collector.wait_until(lambda: collector.get("/metrics").text.count("laggard_node_labels{") == 3)

    def of_kubernetes(name: str, rack: str) -> dict[str, str]:
        label = "__meta_kubernetes_node_label_example_com_"
        return {"__meta_kubernetes_pod_node_name": name, f"{label}rack": rack, f"{label}team": "vision"}

    alerting.scraped = [
        pods(tmp_path, {pod.address: of_kubernetes("k8s-4", "r4"), gone: of_kubernetes("k8s-5", "r5")}),
        {
            "job_name": "laggard-agent",
            "scrape_interval": "1s",
            "honor_labels": True,
            "static_configs": [{"targets": [it.address for it in (by_name, by_target, nobodys)]}],
        },
    ]
    alerting.tells = REPOSITORY / "deploy" / "prometheus" / "alertmanager-example.yml"
    alerting.start(collector=collector.url.removeprefix("http://"))
    expected = {
        ("LaggardCriticalFinding", by_name.address): ("operators", "v1", "batch,debug", "r1", "vision"),
        ("LaggardCriticalFinding", by_target.address): ("vision-pager", "v2", "batch", "r2", "vision"),
        ("LaggardCriticalFinding", nobodys.address): ("pager", "n3", "", "", ""),
        ("LaggardCriticalFinding", pod.address): ("vision-pager", "k8s-4", "", "r4", "vision"),
        ("LaggardAgentDown", gone): ("vision", "k8s-5", "", "r5", "vision"),
    }
    found: dict[tuple[str, str], tuple[str, ...]] = {}

    def as_expected() -> bool:
        for alert in alerting.told:
            labels = alert["labels"]
            where = (labels["alertname"], labels.get("instance", ""))
            places = (labels.get(name, "") for name in ("hostname", "partition", "rack", "team"))
            if where in expected:
                found[where] = (alert["receiver"], *places)
        return found == expected

    wait_for(as_expected, lambda: f"{found} instead of {expected}")
