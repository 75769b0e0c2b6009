"""What the controller's token may do on a real API server, and above all what it may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
TAINT = {"key": "laggard/unhealthy", "value": "GPU_LOST", "effect": "NoSchedule"}
OTHERS = {"key": "example.org/theirs", "effect": "NoSchedule"}

pytestmark = pytest.mark.slow

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(cluster: Any) -> Ask:
    """Asks as the controller. Returns the status, and what was said."""
    token = cluster.service_account_token("laggard", "laggard-controller")

    def ask(method: str, path: str, body: Any = None, kind: str = MERGE) -> tuple[int, str]:
        answer = cluster.request(method, path, body, token, kind)
        return answer.status_code, answer.json().get("message", "")

    return ask


def condition(kind: str, status: str) -> Any:
    return {"status": {"conditions": [{"type": kind, "status": status, "reason": "X", "message": ""}]}}


def test_it_writes_its_own_condition_and_no_other(cluster: Any, add_node: Any, ask: Ask) -> None:
    add_node("a1")
    path = "/api/v1/nodes/a1/status"
    assert ask("PATCH", path, condition("LaggardHealthy", "False"), STRATEGIC)[0] == 200
    status, why = ask("PATCH", path, condition("Ready", "False"), STRATEGIC)
    assert status == 422 and "LaggardHealthy alone" in why
    for change in (
        {"capacity": {"nvidia.com/gpu": "0"}},
        {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]},
    ):
        status, why = ask("PATCH", path, {"status": change}, STRATEGIC)
        assert status == 422 and "no capacity" in why
    assert cluster.condition("a1", "Ready")["status"] == "True"


def test_it_sets_its_own_taint_and_changes_nothing_else_of_a_node(cluster: Any, add_node: Any, ask: Ask) -> None:
    add_node("a2")
    path = "/api/v1/nodes/a2"
    cluster.do("PATCH", path, {"spec": {"taints": [OTHERS]}}, MERGE)
    assert ask("PATCH", path, {"spec": {"taints": [OTHERS, TAINT]}})[0] == 200
    refused = {
        "alone": {"spec": {"taints": [TAINT]}},
        "NoExecute": {"spec": {"taints": [OTHERS, {**TAINT, "effect": "NoExecute"}]}},
        "no label": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        "annotation": {"metadata": {"annotations": {"laggard/ignore": "true"}}},
        "cordon": {"spec": {"unschedulable": True}},
    }
    for word, change in refused.items():
        status, why = ask("PATCH", path, change)
        assert status == 422 and word in why, (word, why)
    assert cluster.taints("a2") == {OTHERS["key"]: "NoSchedule", TAINT["key"]: "NoSchedule"}
    assert ask("PATCH", path, {"spec": {"taints": [OTHERS]}})[0] == 200


def test_it_tells_of_nodes_alone_and_under_its_own_name(add_node: Any, ask: Ask) -> None:
    add_node("a5")
    path, about = "/api/v1/namespaces/default/events", {"apiVersion": "v1", "kind": "Node", "name": "a5"}
    event = {"metadata": {"generateName": "x-"}, "involvedObject": about, "source": {"component": "laggard-controller"}}
    assert ask("POST", path, event, "")[0] == 201
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "a5", "namespace": "default"}
    for wrong in ({"involvedObject": pod}, {"source": {"component": "kubelet"}}, {"source": {}}):
        status, why = ask("POST", path, {**event, **wrong}, "")
        assert status == 422 and "events on nodes alone" in why, (wrong, why)
    assert ask("GET", path)[0] == ask("DELETE", path)[0] == 403
    assert ask("POST", "/api/v1/namespaces/kube-system/events", event, "")[0] == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/v1/nodes/a3"),
        ("PUT", "/api/v1/nodes/a3"),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/laggard/secrets"),
        ("POST", "/api/v1/namespaces/laggard/pods"),
        ("GET", "/api/v1/nodes/a3/proxy/metrics"),
        ("POST", "/api/v1/namespaces/laggard/serviceaccounts/laggard-controller/token"),
    ],
)
def test_everything_else_is_refused(add_node: Any, ask: Ask, method: str, path: str) -> None:
    add_node("a3")
    status, why = ask(method, path, {} if method != "GET" else None)
    assert status == 403, (method, path, why)


@pytest.mark.parametrize("name", ["laggard-agent", "laggard-collector"])
def test_agent_and_collector_have_no_right_at_all(cluster: Any, add_node: Any, name: str) -> None:
    """Not even if somebody gave them the token that their pods do not get."""
    add_node("a4")
    token = cluster.service_account_token("laggard", name)
    assert cluster.request("GET", "/api/v1/nodes", token=token).status_code == 403
    patch = condition("LaggardHealthy", "True")
    assert cluster.request("PATCH", "/api/v1/nodes/a4/status", patch, token, STRATEGIC).status_code == 403
