"""Another namespace by kustomize's `namespace:` alone, with a real kubectl, API server and controller."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.paths import REPOSITORY

from laggard.kubernetes.api_server import ApiServer
from laggard.kubernetes.controller import Controller
from laggard.kubernetes.exchange import Exchange
from laggard.kubernetes.settings import ControllerSettings

pytestmark = pytest.mark.slow

OWN = "gpu-tools"


@pytest.fixture
def installed(own_control_plane: Any, tmp_path: Path) -> Any:
    """The control plane with overlays/taint in the namespace OWN, as `kubectl apply -k` makes it, twice."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    overlay = os.path.relpath(REPOSITORY / "deploy/kubernetes/overlays/taint", tmp_path)
    keys = {"namespace": OWN, "resources": [overlay]}
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    (tmp_path / "kustomization.yaml").write_text(head + yaml.safe_dump(keys))
    environment = {**os.environ, "KUBECONFIG": str(own_control_plane.write_kubeconfig(tmp_path))}
    for mode in ([], ["--server-side", "--force-conflicts"]):
        done = subprocess.run(
            [kubectl, "apply", *mode, "-k", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    return own_control_plane


def test_the_controller_does_its_work_in_another_namespace(
    installed: Any, fake_agent: Any, start_collector: Any, make: Any, tmp_path: Path
) -> None:
    plane = installed
    plane.add_node("gpu-1")
    agent = fake_agent(make.ranks_document("gpu-1", []), make.report("gpu-1", ["GPU_LOST"]))
    collector = start_collector("--target", agent.address, "--interval", "0.2")
    collector.wait_until(lambda: [row["verdict"] for row in collector.get("/api/v1/nodes").json()["nodes"]] == ["fail"])
    token = tmp_path / "token"
    token.write_text(plane.service_account_token(OWN, "laggard-controller"))
    api, agent_side = Exchange(120.0, ssl.create_default_context(cafile=plane.ca_file)), Exchange(120.0)
    settings = ControllerSettings(
        collector=collector.url, timeout_seconds=120.0, taint="on", failing_seconds=0.0, max_tainted_ratio=1.0
    )
    controller = Controller(ApiServer(api, plane.url, str(token)), agent_side, settings)
    seconds = iter(range(0, 10**6, 500))

    def told() -> list[str]:
        controller.round(float(next(seconds)))
        items = plane.do("GET", "/api/v1/namespaces/default/events")["items"]
        return [it["reason"] for it in items if it["involvedObject"].get("name") == "gpu-1"]

    plane.wait_until(lambda: "Tainted" in told())
    assert plane.condition("gpu-1")["status"] == "False" and "laggard/unhealthy" in plane.taints("gpu-1")
    assert controller.last.failure == ""
    for path in ("namespaces", "serviceaccounts", "configmaps", "services", "events"):
        items = plane.do("GET", f"/api/v1/{path}")["items"]
        assert not [it for it in items if "laggard" in (it["metadata"]["name"], it["metadata"].get("namespace"))], path
    api.close()
    agent_side.close()
