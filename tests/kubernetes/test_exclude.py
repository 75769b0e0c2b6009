"""`laggard exclude --format kubernetes` with a real API server and its controllers: pods that have the affinity are on
the other nodes. There is no scheduler here. The controller manager judges in its place: for a DaemonSet it goes by
affinity, taints and the real Node objects with the scheduler's own rules, and says which nodes may have a pod."""

from __future__ import annotations

import json
import os
import subprocess
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
SECONDS = 30
"""The time for which a slow node is left out here. A busy machine must find it in the list within it."""


def pod_spec(affinity: str) -> dict[str, Any]:
    return {"containers": [{"name": "train", "image": "train"}], **(yaml.safe_load(affinity) or {})}


def job(name: str, affinity: str) -> dict[str, Any]:
    spec = {"restartPolicy": "Never", **pod_spec(affinity)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {"spec": spec}}}


def daemon_set(name: str, spec: dict[str, Any]) -> dict[str, Any]:
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


def apply(name: str, affinity: str) -> None:
    """As a user does, who looks first whether the API server would take it."""
    text = json.dumps(job(name, affinity))
    for words in (("--dry-run=server",), ()):
        command = ["kubectl", "apply", *words, "-f", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, env=os.environ)
        assert done.returncode == 0, done.stderr


def may_be_on(plane: Any, name: str) -> set[str]:
    """The nodes on which the pod of that Job may be, by what it asks for itself."""

    def pods() -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/default/pods?labelSelector=job-name={name}"
        found: list[dict[str, Any]] = plane.do("GET", path)["items"]
        return found

    plane.wait_until(pods)
    (pod,) = pods()
    asked = {key: pod["spec"][key] for key in ("affinity", "tolerations") if key in pod["spec"]}
    plane.do("POST", SETS, daemon_set(name, {**pod_spec(""), **asked}))

    def counted() -> dict[str, Any]:
        status: dict[str, Any] = plane.do("GET", f"{SETS}/{name}")["status"]
        return status

    plane.wait_until(lambda: counted().get("observedGeneration") == 1)
    wanted = counted()["desiredNumberScheduled"]
    plane.wait_until(lambda: len(nodes_of(plane, name)) == wanted)
    return nodes_of(plane, name)


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
    kubernetes.do("POST", SETS, daemon_set("next", pod_spec(affinity)))
    kubernetes.wait_until(lambda: len(nodes_of(kubernetes, "next")) == 2)
    assert nodes_of(kubernetes, "next") == {"gpu-1", "gpu-3"}

    agents["gpu-2"].report = make.report("gpu-2")
    collector.wait_until(lambda: is_out("gone"))
    status, affinity = exclude()
    assert (status, affinity) == (0, "")
    kubernetes.do("POST", SETS, daemon_set("then", pod_spec(affinity)))
    kubernetes.wait_until(lambda: nodes_of(kubernetes, "then") == set(NODES))
    with kubernetes.silent():
        assert exclude() == (2, "")
    assert exclude("--scheduler", "none")[0] == 0


def test_a_slow_node_is_avoided_by_the_next_job_and_back_after_its_time(
    kubernetes: Any,
    make: Any,
    fake_agent: Callable[..., Any],
    start_collector: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The agents tell of a job whose rank on gpu-2 is slow, then of its end. Nobody does anything about the node."""
    slow = NODES.index("gpu-2")
    agents = {
        node: fake_agent(make.node(node, [rank], slow=slow, world_size=len(NODES)), make.report(node))
        for rank, node in enumerate(NODES)
    }
    config = tmp_path / "collector.json"  # JSON is YAML
    settings = {"interval_seconds": 0.3, "report_interval_seconds": 0.3, "exclude_seconds": SECONDS}
    config.write_text(json.dumps({**settings, "incidents_database": str(tmp_path / "incidents.sqlite")}))
    targets = [word for agent in agents.values() for word in ("--target", agent.address)]
    collector = start_collector("--config", str(config), *targets)

    def exclude(*words: str) -> str:
        capsys.readouterr()
        assert main(["exclude", "--format", "kubernetes", "--collector", collector.url, *words]) == 0
        return capsys.readouterr().out

    def exclusions() -> Any:
        return collector.get("/api/v1/exclusions").json()

    collector.wait_until(lambda: collector.get("/api/v1/location").json()["culprits"])
    (culprit,) = collector.get("/api/v1/location").json()["culprits"]
    assert (culprit["node"], culprit["kind"]) == ("gpu-2", "slow_compute")
    collector.wait_until(lambda: exclusions()["exclusions"])
    first = exclusions()["exclusions"][0]["until"]
    collector.wait_until(lambda: exclusions()["now"] > first)
    assert '["gpu-2"]' in exclude()  # it is named as long as the job runs, and its time begins anew

    for rank, (node, agent) in enumerate(agents.items()):
        agent.ranks = make.node(node, [rank], slow=slow, world_size=len(NODES), state="finished", pid=0)
    closed = lambda: collector.get("/api/v1/incidents").json()["incidents"][0]["closed_because"]  # noqa: E731
    collector.wait_until(lambda: closed() == "job_ended")
    affinity = exclude()
    (listed,) = exclusions()["exclusions"]
    assert (listed["node"], listed["basis"]) == ("gpu-2", "culprit")
    apply("next", affinity)
    assert may_be_on(kubernetes, "next") == {"gpu-1", "gpu-3"}

    collector.wait_until(lambda: exclude() == "")
    assert exclusions()["now"] >= listed["until"] >= listed["since"] + SECONDS
    # The page goes on showing the last verdict of the job that ended, which names the node.
    assert [it["node"] for it in collector.get("/api/v1/location").json()["culprits"]] == ["gpu-2"]
    apply("then", exclude())
    assert may_be_on(kubernetes, "then") == set(NODES)
    assert nodes_of(kubernetes, "next") == {"gpu-1", "gpu-3"}  # a pod keeps what it was made with
