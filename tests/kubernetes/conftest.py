"""One real control plane for all tests of this folder, with what the chart makes applied."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chart import NO_HELM, rendered
from support.control_plane import HOW, MERGE, ControlPlane, missing, running
from support.custom_resources import definitions

PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
"""As NVIDIA's operator makes it."""
CLUSTER_WIDE = ("Namespace", "ClusterRole", "ClusterRoleBinding")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Its tests share one cluster."""
    item.add_marker(pytest.mark.together("kubernetes"))


def render(values: dict[str, Any] | None = None, namespace: str = "laggard") -> list[dict[str, Any]]:
    """What Helm makes of the chart with these values, and the namespace that it goes to."""
    pytest.importorskip("helm_python", reason=NO_HELM)
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return [home, *rendered(values, namespace)]


def path_of(item: dict[str, Any]) -> str:
    """Where the API server has objects of this kind."""
    version, kind, namespace = item["apiVersion"], item["kind"], item["metadata"].get("namespace")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    wide = kind in CLUSTER_WIDE or kind.startswith("Validating")
    return f"{root}/{plural}" if wide else f"{root}/namespaces/{namespace or 'default'}/{plural}"


def apply(plane: ControlPlane, items: list[dict[str, Any]]) -> None:
    """As `kubectl apply --server-side --validate=strict`: an unknown field is an error."""
    for item in items:
        url = f"{path_of(item)}/{item['metadata']['name']}?fieldManager=test&force=true&fieldValidation=Strict"
        plane.do("PATCH", url, item, "application/apply-patch+yaml")


def define_custom_resources(plane: ControlPlane) -> None:
    """Makes the kinds of others' operators known, so that objects of them can be applied."""
    for definition in definitions():
        name = definition["metadata"]["name"]
        url = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=test&force=true"
        plane.do("PATCH", url, definition, "application/apply-patch+yaml")
        group, version = definition["spec"]["group"], definition["spec"]["versions"][0]["name"]
        served = f"/apis/{group}/{version}/{definition['spec']['names']['plural']}"
        plane.wait_until(lambda served=served: plane.request("GET", served).is_success)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if absent := missing():
        pytest.skip(f"{', '.join(absent)} not found; these tests need {HOW}")
    with running(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def own_control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """One that no other test uses, with NVIDIA's runtime class alone."""
    if absent := missing():
        pytest.skip(f"{', '.join(absent)} not found; these tests need {HOW}")
    folder = tmp_path / "control-plane"
    folder.mkdir()
    with running(folder) as plane:
        plane.do("POST", "/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASS)
        yield plane


@pytest.fixture(scope="session")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """With all of laggard applied, taints included."""
    control_plane.do("POST", "/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASS)
    apply(control_plane, render({"controller": {"taint": "on"}}))
    control_plane.add_node("first")
    token = control_plane.service_account_token("laggard", "laggard-controller")
    for path, change in (("", {"spec": {"unschedulable": True}}), ("/status", {"status": {"capacity": {"cpu": "1"}}})):
        node = f"/api/v1/nodes/first{path}?dryRun=All"
        # The server takes up an admission policy some moments after it was made.
        control_plane.wait_until(
            lambda node=node, change=change: (
                control_plane.request("PATCH", node, change, token, MERGE).status_code == 422
            )
        )
    about = {"apiVersion": "v1", "kind": "Node", "name": "first"}
    stranger = {"metadata": {"generateName": "x-"}, "involvedObject": about, "source": {"component": "stranger"}}
    events = "/api/v1/namespaces/default/events?dryRun=All"
    control_plane.wait_until(lambda: control_plane.request("POST", events, stranger, token).status_code == 422)
    control_plane.do("DELETE", "/api/v1/nodes/first")
    return control_plane


@pytest.fixture
def add_node(cluster: ControlPlane) -> Iterator[Any]:
    names: list[str] = []

    def add(name: str, **named: Any) -> None:
        names.append(name)
        cluster.add_node(name, **named)

    yield add
    for name in names:
        cluster.do("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def token_file(cluster: ControlPlane, tmp_path: Path) -> Path:
    """The controller's own token, as a pod of it would have it."""
    path = tmp_path / "token"
    path.write_text(cluster.service_account_token("laggard", "laggard-controller"))
    return path


@pytest.fixture(scope="session")
def kubernetes_tools() -> Any:
    """The functions above, for tests: under pytest's importlib mode a conftest cannot be imported."""
    return Tools


class Tools:
    render = staticmethod(render)
    define_custom_resources = staticmethod(define_custom_resources)
    apply = staticmethod(apply)
    path_of = staticmethod(path_of)
