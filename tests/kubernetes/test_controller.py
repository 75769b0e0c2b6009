"""The controller with a real API server and a real collector, whose agents are fakes with whatever findings."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs
from support.daemons import Daemon

from laggard.kubernetes.api_server import ApiServer, Exchange
from laggard.kubernetes.controller import Controller
from laggard.kubernetes.settings import ControllerSettings

pytestmark = pytest.mark.slow

TAINT = "laggard/unhealthy"
OTHERS = {"key": "example.org/theirs", "value": "x", "effect": "NoSchedule"}


class Fleet:
    """Nodes of the cluster with fake agents, and a collector that asks them. All have the address 127.0.0.1."""

    def __init__(self, add_node: Any, fake_agent: Any, start_collector: Any, make: Any, folder: Path) -> None:
        self._add_node, self._fake_agent, self._start, self._make = add_node, fake_agent, start_collector, make
        self._folder = folder
        self.agents: dict[str, Any] = {}
        self.collector: Any = None

    def start(self, *names: str) -> None:
        for name in names:
            self._add_node(name)
            self.agents[name] = self._fake_agent(self._make.ranks_document(name, []), self._make.report(name))
        config = self._folder / "collector.yaml"
        config.write_text("report_interval_seconds: 0.2\nincidents_database: ''\n")
        targets = [word for agent in self.agents.values() for word in ("--target", agent.address)]
        self.collector = self._start(*targets, "--interval", "0.2", "--config", str(config))
        self._wait_for(dict.fromkeys(names, "ok"))

    def find(self, name: str, *codes: str) -> None:
        """The agent's report has these critical findings from now on; the collector has seen it when this returns."""
        self.agents[name].report = self._make.report(name, codes)
        self._wait_for({name: "fail"})

    def _wait_for(self, wanted: dict[str, str]) -> None:
        def are_there() -> bool:
            rows = self.collector.get("/api/v1/nodes").json()["nodes"]
            return wanted.items() <= {row["node"]: row["verdict"] for row in rows}.items()

        self.collector.wait_until(are_there)


@pytest.fixture
def fleet(add_node: Any, fake_agent: Any, start_collector: Any, make: Any, tmp_path: Path) -> Fleet:
    return Fleet(add_node, fake_agent, start_collector, make, tmp_path)


@pytest.fixture
def start_controller(cluster: Any, fleet: Fleet, token_file: Path) -> Iterator[Callable[..., Controller]]:
    """A controller whose rounds the test makes, at moments of its choice."""
    exchanges: list[Exchange] = []

    def start(**changes: Any) -> Controller:
        settings = structs.replace(
            ControllerSettings(collector=fleet.collector.url, timeout_seconds=120.0, max_tainted_ratio=0.5),
            **changes,
        )
        exchanges.extend((Exchange(120.0, ssl.create_default_context(cafile=cluster.ca_file)), Exchange(120.0)))
        return Controller(ApiServer(exchanges[-2], cluster.url, str(token_file)), exchanges[-1], settings)

    yield start
    for exchange in exchanges:
        exchange.close()


def told(cluster: Any, name: str) -> list[str]:
    """The reasons of the controller's events on a node, oldest first."""
    query = f"?fieldSelector=involvedObject.kind=Node,involvedObject.name={name}"
    items = cluster.do("GET", f"/api/v1/namespaces/default/events{query}")["items"]
    items.sort(key=lambda it: int(it["metadata"]["resourceVersion"]))
    assert {it["involvedObject"]["uid"] for it in items} <= {cluster.node(name)["metadata"]["uid"]}
    own = [it for it in items if it["source"]["component"] == "laggard-controller"]
    return [it["reason"] for it in own]


def test_people_can_take_a_node_out(cluster: Any, fleet: Fleet, start_controller: Any) -> None:
    fleet.start("o1", "o2")
    fleet.find("o1", "GPU_LOST")
    controller = start_controller(taint="on", failing_seconds=0.0)
    controller.round(0.0)
    assert TAINT in cluster.taints("o1") and cluster.condition("o1")
    annotation = {"metadata": {"annotations": {"laggard/ignore": "true"}}}
    cluster.do("PATCH", "/api/v1/nodes/o1", annotation, "application/merge-patch+json")
    controller.round(15.0)
    assert TAINT not in cluster.taints("o1") and cluster.condition("o1") is None
    assert told(cluster, "o1") == ["Tainted", "GPU_LOST", "TaintRemoved", "Ignored"]


def test_what_another_changed_meanwhile_is_not_overwritten(
    cluster: Any, fleet: Fleet, start_controller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.start("m1", "m2")
    fleet.find("m1", "GPU_LOST")
    controller = start_controller(taint="on", failing_seconds=0.0)
    nodes = ApiServer.nodes

    def then_another_taints(api: ApiServer) -> Any:
        found = nodes(api)
        cluster.do("PATCH", "/api/v1/nodes/m1", {"spec": {"taints": [OTHERS]}}, "application/merge-patch+json")
        return found

    monkeypatch.setattr(ApiServer, "nodes", then_another_taints)
    controller.round(0.0)
    assert cluster.taints("m1") == {OTHERS["key"]: "NoSchedule"} and not controller.last.failure
    monkeypatch.undo()
    controller.round(15.0)
    assert cluster.taints("m1") == {OTHERS["key"]: "NoSchedule", TAINT: "NoSchedule"}


def test_while_the_collector_is_away_nothing_is_written(
    cluster: Any, fleet: Fleet, start_controller: Any, token_file: Path
) -> None:
    fleet.start("x1")
    fleet.find("x1", "GPU_LOST")
    controller = start_controller(collector="http://127.0.0.1:9")
    controller.round(0.0)
    assert (
        cluster.condition("x1") is None
        and "the collector http://127.0.0.1:9 does not answer" in controller.last.failure
    )
    controller = start_controller(collector=fleet.agents["x1"].url)
    controller.round(0.0)
    assert f"{fleet.agents['x1'].url} is no collector: write a collector's address" in controller.last.failure
    controller = start_controller(collector=fleet.collector.url.replace("http:", "https:"))
    controller.round(0.0)
    assert "it does not speak TLS: write http://" in controller.last.failure
    controller = start_controller()
    token_file.write_text("\n")
    controller.round(0.0)
    assert f"the token file {token_file} is empty" in controller.last.failure
    token_file.write_text("nobody")
    controller.round(0.0)
    assert "Unauthorized" in controller.last.failure
    token_file.write_text(cluster.service_account_token("laggard", "laggard-agent"))
    controller.round(15.0)
    assert "cannot list nodes" in controller.last.failure and "see the ClusterRole" in controller.last.failure
    token_file.write_text(cluster.service_account_token("laggard", "laggard-controller"))  # as the kubelet renews it
    controller.round(30.0)
    assert cluster.condition("x1")["status"] == "False" and not controller.last.failure


def test_an_api_server_with_another_certificate_gets_no_token(cluster: Any, token_file: Path) -> None:
    exchange = Exchange(120.0)  # the system's authorities, of which none made this one
    controller = Controller(ApiServer(exchange, cluster.url, str(token_file)), exchange, ControllerSettings())
    controller.round(0.0)
    assert "its certificate is not accepted: " in controller.last.failure
    exchange.close()


def test_the_command_runs_until_it_is_stopped(cluster: Any, fleet: Fleet, token_file: Path, tmp_path: Path) -> None:
    fleet.start("r1")
    config = tmp_path / "controller.yaml"
    config.write_text(
        f"collector: {fleet.collector.url}\napi_server: {cluster.url}\ntoken_file: {token_file}\n"
        f"ca_file: {cluster.ca_file}\ninterval_seconds: 0.2\ntimeout_seconds: 60\n"
    )
    daemon = Daemon(tmp_path / "log", ("kubernetes", "controller", "--config", str(config)), {})
    try:
        cluster.wait_until(lambda: (cluster.condition("r1") or {}).get("status") == "True")
        with httpx.Client(base_url=daemon.url, trust_env=False, timeout=300) as client:
            assert client.get("/-/healthy").status_code == client.get("/-/ready").status_code == 200
            cluster.wait_until(lambda: "last_round_timestamp_seconds 0.0" not in client.get("/metrics").text)
            metrics = client.get("/metrics").text
            assert client.get("/").status_code == 404 and client.post("/metrics").status_code == 405
    finally:
        status = daemon.stop()
    assert status == 0
    assert "\nlaggard_controller_round_seconds " in metrics and "\nprocess_resident_memory_bytes " in metrics
    assert "\nlaggard_controller_misnamed_agents 0.0" in metrics
    assert "laggard_controller_unhealthy_nodes 0.0" in metrics and "laggard_controller_held_back 0.0" in metrics
