"""docs/start/kubernetes.md as a reader would go through it, with a real kubectl, API server and Helm.

No kubelet runs here: agents that are made up, a real collector and the real controller stand in for the pods that the
chart makes. The page's commands that need a container stand indented on it, and are not run.
"""

import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from support.chart import NO_HELM
from support.helm_command import helm_first
from support.paths import REPOSITORY
from support.transcript import Command, commands_of, run

from laggard.kubernetes.api_server import ApiServer, Exchange
from laggard.kubernetes.controller import Controller
from laggard.kubernetes.settings import ControllerSettings

PAGE = REPOSITORY / "docs" / "start" / "kubernetes.md"


WHOLE = REPOSITORY / "docs" / "kubernetes.md"
UPGRADE = "helm upgrade laggard deploy/helm/laggard --namespace laggard --reuse-values --set controller.taint="
LEFT_BEHIND = (
    "/api/v1/namespaces",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
)


@pytest.mark.slow
def test_a_cluster_gets_its_first_answers(
    own_control_plane: Any, fake_agent: Any, start_collector: Any, make: Any, tmp_path: Path
) -> None:
    """And, after the taint, has nothing left of laggard when it is away again."""
    plane = own_control_plane
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    pytest.importorskip("helm_python", reason=NO_HELM)
    plane.add_node("gpu-1")
    plane.add_node("gpu-2")
    path = helm_first(tmp_path)
    environment = {**os.environ, "KUBECONFIG": str(plane.write_kubeconfig(tmp_path)), "PATH": path}
    install, ask, ignore, remove = commands_of(PAGE)
    run(install, environment)
    agents = [
        fake_agent(make.ranks_document("gpu-1", []), make.report("gpu-1")),
        fake_agent(make.ranks_document("gpu-2", []), make.report("gpu-2", ["GPU_LOST"])),
    ]
    collector = start_collector(*(word for it in agents for word in ("--target", it.address)), "--interval", "0.2")
    collector.wait_until(
        lambda: [row["verdict"] for row in collector.get("/api/v1/nodes").json()["nodes"]] == ["ok", "fail"]
    )
    token = tmp_path / "token"
    token.write_text(plane.service_account_token("laggard", "laggard-controller"))
    api, agent_side = Exchange(120.0, ssl.create_default_context(cafile=plane.ca_file)), Exchange(120.0)
    settings = ControllerSettings(collector=collector.url, timeout_seconds=120.0)
    controller = Controller(ApiServer(api, plane.url, str(token)), agent_side, settings)
    plane.wait_until(lambda: _judges(controller, plane))
    run(ask, environment)
    changed = ControllerSettings(collector=collector.url, timeout_seconds=120.0, taint="on", failing_seconds=0.0)
    controller = Controller(ApiServer(api, plane.url, str(token)), agent_side, changed)
    run(Command(f"{UPGRADE}on", ()), environment)
    plane.wait_until(lambda: _taints(controller, plane))
    _goes_back_from_the_taint(plane, environment)
    run(Command(f"{UPGRADE}on", ()), environment)
    plane.wait_until(lambda: _taints(controller, plane))
    _is_away_again(plane, controller, environment, ignore, remove)
    api.close()
    agent_side.close()


def _goes_back_from_the_taint(plane: Any, environment: Any) -> None:
    """Runs the indented commands of docs/kubernetes.md, but for the one that waits for a pod."""
    _, _, after = WHOLE.read_text().partition("**The way back from the taint.**")
    switch_off, rollout, remove, *_ = [line.strip() for line in after.splitlines() if line.startswith("    ")]
    assert switch_off == f"{UPGRADE}off" and "rollout status" in rollout
    run(Command(f"{switch_off}\n{remove}", ()), environment)
    assert "laggard/unhealthy" not in plane.taints("gpu-2")
    assert not [name for path in LEFT_BEHIND for name in _named_laggard(plane, path) if "taint" in name]


def _is_away_again(plane: Any, controller: Controller, environment: Any, ignore: Command, remove: Command) -> None:
    """Goes through the page's end, and that of docs/kubernetes.md."""
    said_by_all = [it for it in commands_of(WHOLE) if "laggard/ignore" in it.script]
    assert said_by_all[0] == ignore and remove.script in said_by_all[1].script, "both pages have the same commands"
    whole = said_by_all[1].script
    run(ignore, environment)
    listing = Command(whole.splitlines()[0], ())
    listed = run(listing, environment).splitlines()
    assert [line.split()[0] for line in listed] == ["gpu-1", "gpu-2"] and "laggard/unhealthy" in listed[1], listed
    controller.round(1000.0)
    assert run(listing, environment) == "", "the controller has taken back what it wrote"
    run(Command(whole, ()), environment)
    for path in LEFT_BEHIND:
        plane.wait_until(lambda path=path: not _named_laggard(plane, path))
    for name in ("gpu-1", "gpu-2"):
        node = plane.node(name)
        assert "laggard" not in str({**node, "metadata": {**node["metadata"], "managedFields": None}}).lower(), name


def _named_laggard(plane: Any, path: str) -> list[str]:
    names = [item["metadata"]["name"] for item in plane.do("GET", path)["items"]]
    return [name for name in names if "laggard" in name]


def _judges(controller: Controller, plane: Any) -> bool:
    """A round of the controller, whose rights the server takes up some moments after they are made."""
    controller.round(0.0)
    return plane.condition("gpu-2") is not None


def _taints(controller: Controller, plane: Any) -> bool:
    controller.round(500.0)
    return bool(plane.taints("gpu-2"))
