"""docs/start/kubernetes.md as a reader would go through it, with a real kubectl and API server.

No kubelet runs here: agents that are made up, a real collector and the real controller stand in for the pods that the
manifests make. The page's commands that need a container stand indented on it, and are not run.
"""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from support.paths import REPOSITORY
from support.transcript import Command, commands_of, run

from laggard.kubernetes.api_server import ApiServer
from laggard.kubernetes.controller import Controller
from laggard.kubernetes.exchange import Exchange
from laggard.kubernetes.settings import ControllerSettings

PAGE = REPOSITORY / "docs" / "start" / "kubernetes.md"


@pytest.mark.slow
def test_a_cluster_gets_its_first_answers(
    own_control_plane: Any, fake_agent: Any, start_collector: Any, make: Any, tmp_path: Path
) -> None:
    plane = own_control_plane
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    plane.add_node("gpu-1")
    plane.add_node("gpu-2")
    environment = {**os.environ, "KUBECONFIG": str(plane.write_kubeconfig(tmp_path))}
    look, install, ask, remove = _commands()
    run(look, environment)
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
    api.close()
    agent_side.close()
    run(ask, environment)
    run(remove, environment)
    assert plane.request("GET", "/api/v1/namespaces/laggard").status_code == 404


def _judges(controller: Controller, plane: Any) -> bool:
    """A round of the controller, whose rights the server takes up some moments after they are made."""
    controller.round(0.0)
    return plane.condition("gpu-2") is not None


def _commands() -> list[Command]:
    """The page's blocks, the first of them line by line."""
    first, ask, remove = commands_of(PAGE)
    look, install = first.script.splitlines()
    return [Command(look, ()), Command(install, first.shown), ask, remove]
