"""What the controller's token may do on a real API server, and above all what it may not."""

from collections.abc import Callable
from typing import Any

import pytest
from support.rows import rows

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
TAINT = {"key": "laggard/unhealthy", "value": "GPU_LOST", "effect": "NoSchedule"}
THE_CLUSTERS = "node.alpha.kubernetes.io/ttl"
"""An annotation that Kubernetes' own controller adds to each node, some time after its start."""
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


METADATA = {
    "labels": {"node-role.kubernetes.io/control-plane": ""},
    "annotations": {"laggard/ignore": "true"},
    "finalizers": ["example.org/never"],
    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "no-such-object"}],
}
"""The last makes the garbage collector delete the node."""
STATUS = {
    "capacity": {"nvidia.com/gpu": "0"},
    "allocatable": {"nvidia.com/gpu": "0"},
    "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    "nodeInfo": {"kubeletVersion": "v0.0.0"},
    "images": [{"names": ["registry.example.org/any"], "sizeBytes": 1}],
    "volumesInUse": ["kubernetes.io/csi/x"],
    "volumesAttached": [{"name": "kubernetes.io/csi/x", "devicePath": "/dev/sda"}],
    "phase": "Terminated",
    "runtimeHandlers": [{"name": "any"}],
    "features": {"supplementalGroupsPolicy": True},
}
SPEC = {
    "providerID": "example://other",
    "podCIDR": "10.9.8.0/24",
    "podCIDRs": ["10.9.8.0/24"],
    "unschedulable": True,
}


def large(name: str) -> dict[str, Any]:
    """The status of a node as kubelets make the largest: fifty images of five names, and what else is long."""
    names = [f"registry.example.org/{name}/{'x' * 150}:{number}" for number in range(5)]
    return {
        "images": [{"names": names, "sizeBytes": number} for number in range(50)],
        "volumesInUse": [f"kubernetes.io/csi/{'x' * 100}{number}" for number in range(40)],
        "volumesAttached": [{"name": f"x{number}", "devicePath": "/dev/" + "x" * 100} for number in range(40)],
    }


def test_it_writes_its_own_condition_and_nothing_else_of_a_status(cluster: Any, add_node: Any, ask: Ask) -> None:
    add_node("a1")
    path = "/api/v1/nodes/a1/status"
    cluster.do("PATCH", path, {"status": large("a1")}, STRATEGIC)
    status, why = ask("PATCH", path, condition("LaggardHealthy", "False"), STRATEGIC)
    assert status == 200, f"at a node with much to compare: {why}"
    status, why = ask("PATCH", path, condition("Ready", "False"), STRATEGIC)
    assert status == 422 and "LaggardHealthy alone" in why
    for field, value in STATUS.items():
        status, why = ask("PATCH", path, {"status": {field: value}})
        assert status == 422 and "nothing of a node's status" in why, (field, status, why)
    for field in large("a1"):
        status, why = ask("PATCH", path, {"status": {field: None}})
        assert status == 422 and "nothing of a node's status" in why, (field, status, why)
    assert cluster.condition("a1", "Ready")["status"] == "True"
    remove = {"status": {"conditions": [{"type": "LaggardHealthy", "$patch": "delete"}]}}
    assert ask("PATCH", path, remove, STRATEGIC)[0] == 200 and cluster.condition("a1") is None


@pytest.mark.parametrize("resource", ["", "/status"])
def test_it_changes_no_metadata_of_a_node(cluster: Any, add_node: Any, ask: Ask, resource: str) -> None:
    """Neither through the node nor through its status, which takes metadata as well."""
    add_node("a6", annotations={"example.org/theirs": "x"}, finalizers=["example.org/theirs"])
    cluster.wait_until(lambda: THE_CLUSTERS in cluster.node("a6")["metadata"]["annotations"])
    before = cluster.node("a6")["metadata"]
    changes = [*METADATA.items(), ("annotations", None), ("labels", None), ("finalizers", [])]
    for field, value in changes:
        status, why = ask("PATCH", f"/api/v1/nodes/a6{resource}", {"metadata": {field: value}})
        assert status == 422 and "no label" in why, (field, status, why)
    after = cluster.node("a6")["metadata"]
    cluster.do("PATCH", "/api/v1/nodes/a6", {"metadata": {"finalizers": []}}, MERGE)
    assert {**before, "managedFields": None} == {**after, "managedFields": None}


def test_it_sets_its_own_taint_and_changes_nothing_else_of_a_node(cluster: Any, add_node: Any, ask: Ask) -> None:
    add_node("a2")
    path = "/api/v1/nodes/a2"
    cluster.do("PATCH", path, {"spec": {"taints": [OTHERS]}}, MERGE)
    assert ask("PATCH", path, {"spec": {"taints": [OTHERS, TAINT]}})[0] == 200
    for word, taints in {"alone": [TAINT], "NoExecute": [OTHERS, {**TAINT, "effect": "NoExecute"}]}.items():
        status, why = ask("PATCH", path, {"spec": {"taints": taints}})
        assert status == 422 and word in why, (word, why)
    for field in ("providerID", "unschedulable"):
        status, why = ask("PATCH", path, {"spec": {field: SPEC[field]}})
        assert status == 422 and "nothing of a node's spec" in why, (field, status, why)
    status, why = ask("PATCH", path, {"spec": {"podCIDR": SPEC["podCIDR"], "podCIDRs": SPEC["podCIDRs"]}})
    assert status == 422 and "nothing of a node's spec" in why, (status, why)
    before = cluster.node("a2")
    for change in ({"spec": SPEC}, {"spec": {"taints": None}}):
        ask("PATCH", f"{path}/status", change)  # answered, and without effect: a status has no spec
    for change in STATUS.items():
        ask("PATCH", path, {"status": dict([change])})  # likewise
    assert cluster.node("a2")["spec"] == before["spec"] and cluster.node("a2")["status"] == before["status"]
    assert cluster.taints("a2") == {OTHERS["key"]: "NoSchedule", TAINT["key"]: "NoSchedule"}
    assert ask("PATCH", path, {"spec": {"taints": [OTHERS]}})[0] == 200
    cluster.do("PATCH", path, {"spec": {"taints": [TAINT]}}, MERGE)
    assert ask("PATCH", path, {"spec": {"taints": None}})[0] == 200, "the last taint goes"


def test_the_policies_on_nodes_have_no_warning(cluster: Any) -> None:
    """What the server's type checker finds is told in the policy's status alone."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    for name in ("laggard-controller-status", "laggard-controller-taint"):
        cluster.wait_until(lambda name=name: "typeChecking" in cluster.do("GET", f"{path}/{name}").get("status", {}))
        found = cluster.do("GET", f"{path}/{name}")["status"]["typeChecking"]
        assert not found.get("expressionWarnings"), (name, found)


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
    elsewhere = "/api/v1/namespaces/kube-system/events"
    assert ask("POST", elsewhere, event, "")[0] == 422, "the server knows that nodes are in no namespace"
    status, why = ask("POST", elsewhere, {**event, "involvedObject": {**about, "namespace": "kube-system"}}, "")
    assert status == 422 and "in the namespace default alone" in why, why


@rows("kubernetes/refused")
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


def test_a_controller_in_another_namespace_is_held_as_well(cluster: Any, add_node: Any) -> None:
    add_node("a7")
    root = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    namespace, account = {"metadata": {"name": "gpu-tools"}}, {"metadata": {"name": "laggard-controller"}}
    cluster.do("POST", "/api/v1/namespaces", namespace)
    cluster.do("POST", "/api/v1/namespaces/gpu-tools/serviceaccounts", account)
    binding = cluster.do("GET", f"{root}/laggard-controller-taint")
    subject = {**binding["subjects"][0], "namespace": "gpu-tools"}
    cluster.do("POST", root, {"metadata": {"name": "moved"}, "roleRef": binding["roleRef"], "subjects": [subject]})
    token = cluster.service_account_token("gpu-tools", "laggard-controller")
    path, cordon = "/api/v1/nodes/a7", {"spec": {"unschedulable": True}}
    cluster.wait_until(lambda: cluster.request("PATCH", path, {}, token, MERGE).status_code != 403)
    answer = cluster.request("PATCH", path, cordon, token, MERGE)
    cluster.do("DELETE", f"{root}/moved")
    assert answer.status_code == 422 and "may not cordon" in answer.text, answer.text
