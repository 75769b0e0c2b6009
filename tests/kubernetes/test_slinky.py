"""deploy/kubernetes/examples/slinky-nodeset.yaml: slurmd's pods have the directory that the node's agent looks into."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from support.kubernetes_schemas import VERSIONS, errors_by_schema
from support.paths import REPOSITORY

from laggard.kit.environment import SHARED_RANK_DIR

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
