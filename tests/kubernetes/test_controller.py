"""The controller with a real API server and a real collector, whose agents are fakes with whatever findings."""

from __future__ import annotations

import logging
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs
from support.control_plane import MERGE

from laggard.kubernetes.api_server import ApiServer, Exchange
from laggard.kubernetes.controller import Controller
from laggard.kubernetes.settings import ControllerSettings
from laggard.model import ProbeResult, Verdict
from laggard.wire import decode
from laggard.wire.nodes import NodesDocument

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

    def start(self, *names: str, nodes: bool = True) -> None:
        for name in names:
            if nodes:
                self._add_node(name)
            self.agents[name] = self._fake_agent(self._make.ranks_document(name, []), self._make.report(name))
        config = self._folder / "collector.yaml"
        config.write_text("report_interval_seconds: 0.2\nincidents_database: ''\n")
        targets = [word for agent in self.agents.values() for word in ("--target", agent.address)]
        self.collector = self._start(*targets, "--interval", "0.2", "--config", str(config))
        self.wait(lambda verdicts: all(verdicts[name] == "ok" for name in names))

    def find(self, name: str, *codes: str, verdict: Verdict | None = None) -> None:
        """The agent's report has these critical findings from now on; the collector has seen it when this returns."""
        self.agents[name].report = report = self._make.report(name, codes, verdict)
        self.wait(lambda verdicts: verdicts[name] == report.verdict.value)

    def wait(self, condition: Callable[[dict[str, str | None]], bool]) -> None:
        def verdicts() -> dict[str, str | None]:
            found = decode(self.collector.get("/api/v1/nodes").content, NodesDocument).nodes
            by_url = {row.url: row.verdict for row in found}
            return {name: by_url[agent.url] for name, agent in self.agents.items()}

        self.collector.wait_until(lambda: condition(verdicts()))


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


def test_the_condition_says_why_and_is_cleared(cluster: Any, fleet: Fleet, start_controller: Any) -> None:
    fleet.start("c1", "c2")
    controller = start_controller()
    controller.round(0.0)
    assert cluster.condition("c1")["status"] == cluster.condition("c2")["status"] == "True"
    healthy_since = cluster.condition("c1")["lastTransitionTime"]
    fleet.find("c1", "GPU_LOST", "DISK_FULL")
    controller.round(15.0)
    said = cluster.condition("c1")
    assert (said["status"], said["reason"]) == ("False", "DISK_FULL")
    assert said["message"] == "gpu0 DISK_FULL on c1 (DISK_FULL); gpu0 GPU_LOST on c1 (GPU_LOST)"
    assert cluster.condition("c2")["status"] == "True" and cluster.condition("c1", "Ready")["status"] == "True"
    assert controller.last.unhealthy == 1 and not controller.last.failure and not cluster.taints("c1").get(TAINT)
    fleet.find("c1")
    controller.round(30.0)
    said = cluster.condition("c1")
    assert (said["status"], said["reason"]) == ("True", "Healthy") and said["lastTransitionTime"] >= healthy_since


def test_the_condition_says_how_much_was_not_checked(
    cluster: Any, fleet: Fleet, start_controller: Any, make: Any
) -> None:
    fleet.start("s1")
    reasons = ["no NVIDIA GPU among 5 PCI devices"] * 2 + ["no swap"]
    skipped = [ProbeResult(f"p{place}", Verdict.SKIPPED, reason, 0.0) for place, reason in enumerate(reasons)]
    report = make.report("s1")
    fleet.agents["s1"].report = structs.replace(report, probes=(*report.probes, *skipped))
    fleet.collector.wait_until(lambda: b"no swap" in fleet.collector.get("/api/v1/nodes").content)
    start_controller().round(0.0)
    count = len(report.probes) + 3
    why = "no NVIDIA GPU among 5 PCI devices (2), no swap (1)"
    assert cluster.condition("s1")["message"] == f"no critical finding; 3 of {count} checks skipped: {why}"


def test_a_silent_agent_makes_its_node_unknown_after_a_while(cluster: Any, fleet: Fleet, start_controller: Any) -> None:
    fleet.start("u1", "u2")
    fleet.find("u2", "GPU_LOST")
    controller = start_controller()
    controller.round(0.0)
    for name in ("u1", "u2"):
        fleet.agents[name].close()
    fleet.wait(lambda verdicts: verdicts["u1"] == verdicts["u2"] == "unknown")
    controller.round(15.0)
    assert cluster.condition("u1")["status"] == "True" and cluster.condition("u2")["status"] == "False"
    controller.round(80.0)
    for name in ("u1", "u2"):
        said = cluster.condition(name)
        assert (said["status"], said["reason"]) == ("Unknown", "AgentSilent") and "is down: " in said["message"]


def test_nodes_without_an_agent_are_left_alone(
    cluster: Any, add_node: Any, fleet: Fleet, start_controller: Any
) -> None:
    add_node("cpu-only")
    fleet.start("w1")
    start_controller().round(0.0)
    assert cluster.condition("cpu-only") is None and cluster.condition("w1")["status"] == "True"


def test_an_agent_speaks_for_the_node_at_its_address_alone(
    cluster: Any, add_node: Any, fleet: Fleet, start_controller: Any
) -> None:
    """An agent, or whoever took its port, cannot have another node tainted by its name."""
    add_node("victim", address="10.9.8.7")
    fleet.start("victim", nodes=False)
    fleet.find("victim", "GPU_LOST")
    controller = start_controller(taint="on", unknown_seconds=0.0)
    controller.round(0.0)
    controller.round(1000.0)
    said = cluster.condition("victim")
    assert (said["status"], said["reason"]) == ("Unknown", "AgentElsewhere") and fleet.agents["victim"].url in said[
        "message"
    ]
    assert TAINT not in cluster.taints("victim")


def test_an_agent_that_calls_its_node_otherwise_is_told_of_once(
    cluster: Any, add_node: Any, fleet: Fleet, start_controller: Any, caplog: pytest.LogCaptureFixture
) -> None:
    add_node("g4")
    fleet.start("g4.example.org", nodes=False)
    controller = start_controller()
    with caplog.at_level(logging.INFO, "laggard.kubernetes"):
        for now in (0.0, 15.0):
            controller.round(now)
    assert cluster.condition("g4") is None and controller.last.misnamed == 1
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "g4.example.org and is at the address of g4" in line]) == 1, told
    assert told.count("no node of Kubernetes has an agent that the collector knows") == 1


def test_a_node_that_fails_for_long_is_tainted_and_after_longer_health_it_is_not(
    cluster: Any, fleet: Fleet, start_controller: Any
) -> None:
    fleet.start("t1", "t2", "t3")
    cluster.do("PATCH", "/api/v1/nodes/t1", {"spec": {"taints": [OTHERS]}}, "application/merge-patch+json")
    fleet.find("t1", "GPU_LOST")
    controller = start_controller(taint="on")
    controller.round(0.0)
    assert TAINT not in cluster.taints("t1")
    controller.round(120.0)
    assert cluster.taints("t1") == {OTHERS["key"]: "NoSchedule", TAINT: "NoSchedule"}
    controller.round(130.0)
    assert controller.last.tainted == 1
    fleet.find("t1", verdict=Verdict.UNKNOWN)
    controller.round(1000.0)
    controller.round(2000.0)
    assert TAINT in cluster.taints("t1"), "what is unknown does not clear a node"
    fleet.find("t1")
    controller.round(3000.0)
    controller.round(3599.0)
    assert TAINT in cluster.taints("t1")
    controller.round(3600.0)
    assert cluster.taints("t1") == {OTHERS["key"]: "NoSchedule"}


def test_a_fleet_of_which_too_much_fails_is_not_tainted(
    cluster: Any, fleet: Fleet, start_controller: Any, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"b{number}" for number in range(6)]
    fleet.start(*names)
    for name in names[:2]:
        fleet.find(name, "MOUNT_HUNG")
    controller = start_controller(taint="on", max_tainted_ratio=0.2)
    controller.round(0.0)
    with caplog.at_level(logging.INFO, "laggard.kubernetes"):
        controller.round(500.0)
    assert "6 nodes: 4 healthy, 2 unhealthy" not in caplog.text, "that was said at the first round"
    assert not any(TAINT in cluster.taints(name) for name in names)
    assert controller.last.held_back.startswith("of 6 nodes 2 fail, and at most 1 may")
    assert "nodes are not tainted: of 6 nodes 2 fail" in caplog.text
    assert cluster.condition("b0")["status"] == "False", "that they fail is told all the same"
    fleet.find("b0")
    controller.round(600.0)
    assert [name for name in names if TAINT in cluster.taints(name)] == ["b1"] and not controller.last.held_back


def told(cluster: Any, name: str) -> list[tuple[str, str, str]]:
    """Type, reason and message of the controller's events on a node, oldest first."""
    query = f"?fieldSelector=involvedObject.kind=Node,involvedObject.name={name}"
    items = cluster.do("GET", f"/api/v1/namespaces/default/events{query}")["items"]
    items.sort(key=lambda it: int(it["metadata"]["resourceVersion"]))
    assert {it["involvedObject"]["uid"] for it in items} <= {cluster.node(name)["metadata"]["uid"]}
    own = [it for it in items if it["source"]["component"] == "laggard-controller"]
    return [(it["type"], it["reason"], it["message"]) for it in own]


def test_events_say_what_became_of_condition_and_taint(cluster: Any, fleet: Fleet, start_controller: Any) -> None:
    fleet.start("e1", "e2")
    controller = start_controller(taint="on")
    controller.round(0.0)
    assert told(cluster, "e1") == [], "that a new node is well is no news"
    fleet.find("e1", "GPU_LOST")
    for now in (10.0, 20.0, 130.0, 140.0):
        controller.round(now)
    lost = "gpu0 GPU_LOST on e1 (GPU_LOST)"
    assert told(cluster, "e1") == [
        ("Warning", "GPU_LOST", f"LaggardHealthy is False: {lost}"),
        ("Warning", "Tainted", f"laggard/unhealthy=GPU_LOST:NoSchedule is set: {lost}"),
    ]
    fleet.find("e1")
    for now in (200.0, 800.0, 900.0):
        controller.round(now)
    assert told(cluster, "e1")[2:] == [
        ("Normal", "Healthy", "LaggardHealthy is True: no critical finding"),
        ("Normal", "TaintRemoved", "the taint laggard/unhealthy is removed: it has been healthy for long enough"),
    ]
    assert told(cluster, "e2") == []


def test_an_event_says_that_the_breaker_holds_a_taint_back(cluster: Any, fleet: Fleet, start_controller: Any) -> None:
    fleet.start("h1", "h2", "h3")
    for name in ("h1", "h2"):
        fleet.find(name, "MOUNT_HUNG")
    controller = start_controller(taint="on", max_tainted_ratio=0.1)
    for now in (0.0, 200.0, 215.0, 230.0):
        controller.round(now)
    for name in ("h1", "h2"):
        kind, reason, why = told(cluster, name)[1]
        assert (kind, reason) == ("Warning", "TaintHeldBack") and len(told(cluster, name)) == 2
        assert why.startswith("laggard/unhealthy is not set: of 3 nodes 2 fail, and at most 1 may")
    fleet.find("h1")
    controller.round(300.0)
    assert [reason for _, reason, _ in told(cluster, "h2")] == ["MOUNT_HUNG", "TaintHeldBack", "Tainted"]


def test_kubectl_describe_shows_the_events(
    cluster: Any, fleet: Fleet, start_controller: Any, kubernetes_tools: Any, tmp_path: Path
) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    fleet.start("k1", "k2")
    fleet.find("k1", "GPU_LOST")
    start_controller().round(0.0)
    command = [kubectl, "describe", "node", "k1", "--kubeconfig", str(cluster.write_kubeconfig(tmp_path))]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"Warning +GPU_LOST +\S+ +laggard-controller +LaggardHealthy is False: gpu0", shown.stdout), (
        shown.stdout
    )


def test_without_the_right_to_write_events_all_else_goes_on(
    cluster: Any, fleet: Fleet, start_controller: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an update of the image without that of its rights."""
    fleet.start("n1", "n2")
    fleet.find("n1", "GPU_LOST")
    controller = start_controller()
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/laggard-controller"
    rules = cluster.do("GET", path)["rules"]
    cluster.do("PATCH", path, {"rules": [it for it in rules if it["resources"] != ["events"]]}, MERGE)
    token = cluster.service_account_token("laggard", "laggard-controller")
    events = "/api/v1/namespaces/default/events"
    cluster.wait_until(lambda: cluster.request("POST", f"{events}?dryRun=All", {}, token).status_code == 403)
    try:
        controller.round(0.0)
    finally:
        cluster.do("PATCH", path, {"rules": rules}, MERGE)
    assert cluster.condition("n1")["status"] == "False" and not controller.last.failure and controller.last.completed_at
    assert "events are not written for a while: cannot create an event on n1" in caplog.text
    cluster.wait_until(lambda: cluster.request("POST", f"{events}?dryRun=All", {}, token).status_code != 403)


def test_a_dry_run_only_says_what_it_would_do(
    cluster: Any, fleet: Fleet, start_controller: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.start("d1", "d2")
    fleet.find("d1", "GPU_LOST")
    controller = start_controller(taint="dry-run")
    controller.round(0.0)
    with caplog.at_level(logging.WARNING, "laggard.kubernetes"):
        controller.round(500.0)
    assert "dry run: node d1 would be tainted: gpu0 GPU_LOST on d1" in caplog.text and not cluster.taints("d1").get(
        TAINT
    )


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
    assert [reason for _, reason, _ in told(cluster, "o1")] == ["Tainted", "GPU_LOST", "TaintRemoved", "Ignored"]


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
        f"ca_file: {cluster.ca_file}\ninterval_seconds: 0.2\nlisten_address: 127.0.0.1:0\ntimeout_seconds: 60\n"
    )
    command = [sys.executable, "-m", "laggard", "kubernetes", "controller", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"listening on (http://[\d.:]+)", process.stderr.readline())
            assert found is not None
            cluster.wait_until(lambda: (cluster.condition("r1") or {}).get("status") == "True")
            with httpx.Client(base_url=found[1], trust_env=False, timeout=300) as client:
                assert client.get("/-/healthy").status_code == client.get("/-/ready").status_code == 200
                cluster.wait_until(lambda: "last_round_timestamp_seconds 0.0" not in client.get("/metrics").text)
                metrics = client.get("/metrics").text
                assert client.get("/").status_code == 404 and client.post("/metrics").status_code == 405
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            process.kill()
    assert "\nlaggard_controller_round_seconds " in metrics and "\nprocess_resident_memory_bytes " in metrics
    assert "\nlaggard_controller_misnamed_agents 0.0" in metrics
    assert "laggard_controller_unhealthy_nodes 0.0" in metrics and "laggard_controller_held_back 0.0" in metrics
