"""Another namespace by Helm's `--namespace` alone, with a real API server and controller."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from laggard.kubernetes.api_server import ApiServer, Exchange
from laggard.kubernetes.controller import Controller
from laggard.kubernetes.settings import ControllerSettings

pytestmark = pytest.mark.slow

OWN = "gpu-tools"


@pytest.fixture
def installed(own_control_plane: Any, kubernetes_tools: Any) -> Any:
    """The control plane with the taint, in the namespace OWN."""
    kubernetes_tools.apply(own_control_plane, kubernetes_tools.render({"controller": {"taint": "on"}}, OWN))
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
