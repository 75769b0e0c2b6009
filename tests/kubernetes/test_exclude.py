"""`laggard exclude --format kubernetes` with a real API server and its controllers: pods that have the affinity are on
the other nodes. A DaemonSet stands for the job, since it is the controller manager that goes by its affinity; there is
no scheduler here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.control_plane import MERGE

from laggard.cli import main

pytestmark = pytest.mark.slow

SETS = "/apis/apps/v1/namespaces/default/daemonsets"
NODES = ("gpu-1", "gpu-2", "gpu-3")


def daemon_set(name: str, affinity: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "train", "image": "train"}], **(yaml.safe_load(affinity) or {})}
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def nodes_of(plane: Any, name: str) -> set[str]:
    """The nodes for which the set has made a pod: each names its own, as the controller writes it."""
    pods = plane.do("GET", f"/api/v1/namespaces/default/pods?labelSelector=app={name}")["items"]
    names: set[str] = set()
    for pod in pods:
        required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        fields = [field for term in required["nodeSelectorTerms"] for field in term["matchFields"]]
        names.update(field["values"][0] for field in fields if field["operator"] == "In")
    return names


@pytest.fixture
def kubernetes(own_control_plane: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for node in NODES:
        own_control_plane.add_node(node)
        # The node controller would, which is switched off for want of kubelets.
        own_control_plane.do("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": None}}, MERGE)
    monkeypatch.setenv("KUBECONFIG", str(own_control_plane.write_kubeconfig(tmp_path)))
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    own_control_plane.wait_until(lambda: own_control_plane.request("GET", account).is_success)
    return own_control_plane


def test_the_next_pods_are_on_the_other_nodes_until_it_is_well(
    kubernetes: Any,
    make: Any,
    fake_agent: Callable[..., Any],
    start_collector: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    agents = {node: fake_agent(make.ranks_document(node, []), make.report(node)) for node in (*NODES, "gone")}
    agents["gpu-2"].report = make.report("gpu-2", ["GPU_LOST"])
    agents["gone"].report = make.report("gone", ["GPU_LOST"])
    config = tmp_path / "collector.yaml"
    config.write_text("interval_seconds: 0.3\nreport_interval_seconds: 0.3\n")
    targets = [word for agent in agents.values() for word in ("--target", agent.address)]
    collector = start_collector("--config", str(config), *targets)

    def exclude(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main(["exclude", "--format", "kubernetes", "--collector", collector.url, *words])
        return status, capsys.readouterr().out

    def is_out(*nodes: str) -> bool:
        document = collector.get("/api/v1/exclusions").json()
        return document["answering"] == 4 and {it["node"] for it in document["exclusions"]} == set(nodes)

    collector.wait_until(lambda: is_out("gpu-2", "gone"))
    status, affinity = exclude()  # `gone` takes no place within the cap, since the API server has no such node
    assert (status, affinity.count("NotIn"), '["gpu-2"]' in affinity) == (0, 1, True), affinity
    kubernetes.do("POST", SETS, daemon_set("next", affinity))
    kubernetes.wait_until(lambda: len(nodes_of(kubernetes, "next")) == 2)
    assert nodes_of(kubernetes, "next") == {"gpu-1", "gpu-3"}

    agents["gpu-2"].report = make.report("gpu-2")
    collector.wait_until(lambda: is_out("gone"))
    status, affinity = exclude()
    assert (status, affinity) == (0, "")
    kubernetes.do("POST", SETS, daemon_set("then", affinity))
    kubernetes.wait_until(lambda: nodes_of(kubernetes, "then") == set(NODES))
    with kubernetes.silent():
        assert exclude() == (2, "")
    assert exclude("--scheduler", "none")[0] == 0
