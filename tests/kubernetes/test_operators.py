"""Objects of the operators, of Prometheus' and of Slinky's: as their own definitions have them."""

import re
from typing import Any

import pytest
import yaml
from support.chart import CHART, NO_HELM, rendered
from support.kubernetes_schemas import VERSIONS, errors_by_schema
from support.network_policy import selects
from support.paths import REPOSITORY

from laggard.kit.environment import SHARED_RANK_DIR

PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
GROUP = "monitoring.coreos.com"


@pytest.mark.parametrize("name", ["rules.yml", "alerts.yml"])
def test_the_rules_are_those_of_prometheus(name: str) -> None:
    copied = "cp deploy/prometheus/{rules,alerts}.yml deploy/helm/laggard/files/"
    assert (CHART / "files" / name).read_text() == (PROMETHEUS / name).read_text(), copied


def rules(items: list[dict[str, Any]]) -> dict[str, Any]:
    """What each PrometheusRule has, by the name of its object."""
    return {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "PrometheusRule"}


def test_helm_makes_objects_of_all_rules() -> None:
    of_files = {
        f"laggard-{name}": yaml.safe_load((PROMETHEUS / f"{name}.yml").read_text()) for name in ("rules", "alerts")
    }
    pytest.importorskip("helm_python", reason=NO_HELM)
    assert rules(rendered({"prometheusRule": True})) == of_files
    assert rules(rendered()) == {}


def jobs(monitors: list[dict[str, Any]], pods: list[dict[str, str]]) -> dict[str, str]:
    """The `job` of each pod that is scraped, by the pod's name, as the operator's configuration gives it: the pod's
    label that jobLabel names, else NAMESPACE/NAME of the PodMonitor (promcfg.go of prometheus-operator 0.93)."""
    found: dict[str, str] = {}
    for monitor in monitors:
        own = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
        for labels in pods:
            if selects(monitor["spec"]["selector"], labels):
                name = labels["app.kubernetes.io/name"]
                assert name not in found, f"{name} is scraped twice"
                found[name] = labels.get(monitor["spec"].get("jobLabel", ""), own)
    return found


def labels_of_pods(items: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [it["spec"]["template"]["metadata"]["labels"] for it in items if it["kind"] in ("DaemonSet", "Deployment")]


@pytest.mark.parametrize("tls", [False, True])
def test_who_is_scraped_has_the_job_that_the_alerts_select_by(tls: bool) -> None:
    pytest.importorskip("helm_python", reason=NO_HELM)
    selected = set(re.findall(r'job="([^"]+)"', (PROMETHEUS / "alerts.yml").read_text()))
    assert {"laggard-agent", "laggard-collector"} <= selected
    items = rendered({"podMonitor": True, "tls": {"enabled": tls}})
    found = jobs([item for item in items if item["kind"] == "PodMonitor"], labels_of_pods(items))
    assert found == {f"laggard-{part}": f"laggard-{part}" for part in ("agent", "collector", "controller")}
    assert selected <= set(found.values())


@pytest.mark.parametrize("tls", [False, True])
def test_labels_that_a_prometheus_selects_by_are_on_its_objects_alone(tls: bool) -> None:
    pytest.importorskip("helm_python", reason=NO_HELM)
    label = {"release": "kube-prometheus-stack"}
    values = {"podMonitor": True, "prometheusRule": True, "prometheusLabels": label, "tls": {"enabled": tls}}
    items = rendered(values)
    labelled = {item["kind"] for item in items if item["metadata"].get("labels", {}).get("release")}
    assert labelled == {"PodMonitor", "PrometheusRule"}
    selected = [it for it in items if selects({"matchLabels": label}, it["metadata"].get("labels", {}))]
    assert len(selected) == sum(it["apiVersion"].startswith(GROUP) for it in items)


@pytest.mark.slow
def test_the_api_server_takes_the_objects_strictly(cluster: Any, kubernetes_tools: Any) -> None:
    kubernetes_tools.define_custom_resources(cluster)
    items = [
        it
        for values in ({"podMonitor": True, "prometheusRule": True}, {"podMonitor": True, "tls": {"enabled": True}})
        for it in rendered(values)
        if it["apiVersion"].startswith(GROUP)
    ]
    assert len(items) == 3 + 3
    kubernetes_tools.apply(cluster, items)
    monitor = next(it for it in items if it["kind"] == "PodMonitor")
    misspelt = {**monitor, "spec": {**monitor["spec"], "jobLable": "x"}}
    refused = cluster.request("POST", f"{kubernetes_tools.path_of(monitor)}?fieldValidation=Strict", misspelt)
    assert refused.status_code == 400 and 'unknown field "spec.jobLable"' in refused.json()["message"], refused.text
    rule = next(it for it in items if it["kind"] == "PrometheusRule")
    twice = {**rule, "spec": {"groups": rule["spec"]["groups"][:1] * 2}}
    refused = cluster.request("POST", f"{kubernetes_tools.path_of(rule)}?dryRun=All", twice)
    assert refused.status_code == 422 and "Duplicate value" in refused.json()["message"], refused.text


NODE_SET = yaml.safe_load((REPOSITORY / "deploy/kubernetes/examples/slinky-nodeset.yaml").read_text())


def pod() -> dict[str, Any]:
    """What the operator makes of the NodeSet, less what it adds by itself: slurmd's container in the pod's template."""
    spec = NODE_SET["spec"]
    container = {"name": "slurmd", **spec["slurmd"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpu-1"},
        "spec": {**spec["template"]["spec"], "containers": [container]},
    }


def test_its_pods_hold_against_the_schemas() -> None:
    for version in VERSIONS:
        assert errors_by_schema([pod()], version) == [], version


def test_ranks_write_where_the_agent_of_the_node_reads(kubernetes_tools: Any) -> None:
    (volume,) = pod()["spec"]["volumes"]
    (mount,) = pod()["spec"]["containers"][0]["volumeMounts"]
    assert volume["hostPath"]["path"] == mount["mountPath"] == SHARED_RANK_DIR and not mount.get("readOnly")
    agents = next(item for item in kubernetes_tools.render() if item["kind"] == "DaemonSet")
    agent = agents["spec"]["template"]["spec"]
    variables = {it["name"]: it.get("value") for it in agent["containers"][0]["env"]}
    assert variables["LAGGARD_RANK_DIR"] == SHARED_RANK_DIR
    places = {it["name"]: it["hostPath"]["path"] for it in agent["volumes"] if "hostPath" in it}
    mounts = {it["mountPath"]: places.get(it["name"]) for it in agent["containers"][0]["volumeMounts"]}
    assert mounts["/run/laggard"] == "/run/laggard"


@pytest.mark.slow
def test_the_api_server_takes_it_strictly(cluster: Any, kubernetes_tools: Any) -> None:
    kubernetes_tools.define_custom_resources(cluster)
    path = f"{kubernetes_tools.path_of(NODE_SET)}?dryRun=All&fieldValidation=Strict"
    cluster.do("POST", "/api/v1/namespaces", {"metadata": {"name": "slurm"}})
    cluster.do("POST", path, NODE_SET)
    misspelt = {**NODE_SET, "spec": {**NODE_SET["spec"], "slurmdd": {}}}
    refused = cluster.request("POST", path, misspelt)
    assert refused.status_code == 400 and 'unknown field "spec.slurmdd"' in refused.json()["message"], refused.text
