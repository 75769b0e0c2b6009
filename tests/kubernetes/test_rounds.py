"""The controller's rounds, with a stand-in for API server and collector: what is written to nodes, when, and what not.
The real API server's own checks, of rights and of patches, are test_controller.py's."""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import structs
from support.fuzz import described_paths

from laggard.collector.web.documents import NodeFindingsDocument
from laggard.kit.http_message import Request
from laggard.kubernetes.api_server import Answer, ApiServer, Exchange
from laggard.kubernetes.command import Web
from laggard.kubernetes.controller import Controller, Round
from laggard.kubernetes.node import CONDITION, OPT_OUT, TAINT_KEY, Node, Taint, out_of
from laggard.kubernetes.settings import ControllerSettings
from laggard.model import Finding, Fix, Severity
from laggard.wire import encode
from laggard.wire.nodes import NodeFinding, NodeRow, NodesDocument

OTHERS = {"key": "example.org/theirs", "value": "x", "effect": "NoSchedule"}


class StandIn(Exchange):
    """Answers as an API server that has these nodes, and as a collector that knows an agent on each. Patches are
    merged as the server does; one of an older version is refused."""

    def __init__(self, *names: str) -> None:
        self.nodes: dict[str, Any] = {
            name: {
                "metadata": {"name": name, "resourceVersion": "1", "uid": name, "annotations": {}},
                "spec": {"taints": []},
                "status": {"addresses": [{"address": f"10.0.0.{place}"}], "conditions": []},
            }
            for place, name in enumerate(names)
        }
        self.rows = {name: self._row(f"10.0.0.{place}", name) for place, name in enumerate(names)}
        self.codes: dict[str, tuple[str, ...]] = {}
        self.events: list[tuple[str, str]] = []
        self.answers = {"collector": 200, "events": 201}

    @staticmethod
    def _row(address: str, name: str) -> NodeRow:
        return NodeRow(f"http://{address}:19400", name, "up", "", 0.0, "ok", (), ())

    def find(self, name: str, *codes: str, verdict: str | None = None) -> None:
        self.codes[name] = codes
        judged = verdict or ("fail" if codes else "ok")
        self.rows[name] = structs.replace(self.rows[name], verdict=judged, findings=codes)

    def send(self, method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        parts = urlsplit(url)
        if parts.hostname == "collector":
            status = self.answers["collector"]
            return Answer(status, self._told(parts.path), "" if status == 200 else "no connection")
        assert headers is not None and headers["Authorization"] == "Bearer secret"
        if method == "GET":
            return Answer(200, json.dumps({"items": list(self.nodes.values()), "metadata": {}}).encode())
        if method == "POST":
            self.events.append((body["involvedObject"]["name"], body["reason"]))
            return Answer(self.answers["events"], b"{}", "forbidden")
        return self._patched(self.nodes[parts.path.split("/")[4]], body)

    def _told(self, path: str) -> bytes:
        if path.endswith("/nodes"):
            return encode(NodesDocument(tuple(self.rows.values())))
        found = [
            NodeFinding(
                self.rows[name].url,
                name,
                Finding(code, Severity.CRITICAL, "gpu0", f"{code} on {name}", {}, Fix("replace it"), ""),
            )
            for name, codes in self.codes.items()
            for code in codes
        ]
        return encode(NodeFindingsDocument(tuple(found)))

    def _patched(self, node: Any, body: Any) -> Answer:
        version = body.get("metadata", {}).get("resourceVersion", node["metadata"]["resourceVersion"])
        if version != node["metadata"]["resourceVersion"]:
            return Answer(409, b"", "the object has been modified")
        node["metadata"]["resourceVersion"] = str(int(version) + 1)
        if "spec" in body:
            node["spec"]["taints"] = body["spec"]["taints"] or []
        for condition in body.get("status", {}).get("conditions", ()):
            kept = [each for each in node["status"]["conditions"] if each["type"] != condition["type"]]
            node["status"]["conditions"] = kept if condition.get("$patch") == "delete" else [*kept, condition]
        return Answer(200, b"{}")

    def condition(self, name: str) -> Any:
        """Status, reason and message."""
        found = [each for each in self.nodes[name]["status"]["conditions"] if each["type"] == CONDITION]
        return tuple(found[0][key] for key in ("status", "reason", "message")) if found else None

    def taints(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.nodes[name]["spec"]["taints"]]


Start = Callable[..., Controller]


@pytest.fixture
def cluster() -> StandIn:
    return StandIn("n1", "n2", "n3")


@pytest.fixture
def start(cluster: StandIn, tmp_path: Path) -> Start:
    (tmp_path / "token").write_text("secret")

    def controller(**changes: Any) -> Controller:
        settings = ControllerSettings(collector="http://collector:19401", max_tainted_ratio=0.5)
        api = ApiServer(cluster, "https://cluster", str(tmp_path / "token"))
        return Controller(api, cluster, structs.replace(settings, **changes))

    return controller


def test_a_condition_says_why_and_is_cleared(cluster: StandIn, start: Start) -> None:
    controller = start()
    cluster.find("n1", "DISK_FULL", "GPU_LOST")
    controller.round(0.0)
    assert cluster.condition("n1")[:2] == ("False", "DISK_FULL") and "gpu0 GPU_LOST on n1" in cluster.condition("n1")[2]
    assert cluster.condition("n2")[:2] == ("True", "Healthy")
    assert (controller.last.unhealthy, controller.last.failure) == (1, "") and not cluster.taints("n1")
    assert cluster.events == [("n1", "DISK_FULL")], "that a new node is well is no event"
    written = {name: node["metadata"]["resourceVersion"] for name, node in cluster.nodes.items()}
    controller.round(15.0)
    assert {name: node["metadata"]["resourceVersion"] for name, node in cluster.nodes.items()} == written
    cluster.find("n1")
    controller.round(30.0)
    assert cluster.condition("n1")[:2] == ("True", "Healthy") and cluster.events[-1] == ("n1", "Healthy")


def test_a_silent_agent_makes_its_node_unknown_after_a_while(cluster: StandIn, start: Start) -> None:
    controller = start()
    controller.round(0.0)
    cluster.rows["n1"] = structs.replace(cluster.rows["n1"], state="down", reason="no connection", verdict="unknown")
    controller.round(15.0)
    assert cluster.condition("n1")[0] == "True"
    controller.round(80.0)
    assert cluster.condition("n1")[:2] == ("Unknown", "AgentSilent")


def test_a_node_that_fails_for_long_is_tainted_and_after_longer_health_it_is_not(
    cluster: StandIn, start: Start
) -> None:
    cluster.nodes["n1"]["spec"]["taints"] = [OTHERS]
    cluster.find("n1", "GPU_LOST")
    controller = start(taint="on")
    controller.round(0.0)
    assert cluster.taints("n1") == [OTHERS["key"]]
    controller.round(120.0)
    assert cluster.taints("n1") == [OTHERS["key"], TAINT_KEY] and ("n1", "Tainted") in cluster.events
    cluster.find("n1", verdict="unknown")
    for now in (1000.0, 2000.0):
        controller.round(now)
    assert TAINT_KEY in cluster.taints("n1"), "what is unknown clears no node"
    cluster.find("n1")
    for now in (2100.0, 2600.0):
        controller.round(now)
    assert TAINT_KEY in cluster.taints("n1")
    controller.round(2700.0)
    assert cluster.taints("n1") == [OTHERS["key"]] and cluster.events[-1][1] == "TaintRemoved"


def test_of_a_fleet_of_which_too_much_fails_none_is_tainted(cluster: StandIn, start: Start) -> None:
    for name in ("n1", "n2"):
        cluster.find(name, "GPU_LOST")
    controller = start(taint="on")
    for now in (0.0, 1000.0):
        controller.round(now)
    assert not any(cluster.taints(name) for name in cluster.nodes)
    assert controller.last.held_back.startswith("of 3 nodes 2 fail") and ("n1", "TaintHeldBack") in cluster.events
    cluster.find("n1")
    controller.round(1015.0)
    assert [name for name in cluster.nodes if cluster.taints(name)] == ["n2"] and not controller.last.held_back


def test_a_dry_run_taints_nothing(cluster: StandIn, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    cluster.find("n1", "GPU_LOST")
    controller = start(taint="dry-run")
    for now in (0.0, 1000.0):
        controller.round(now)
    assert not cluster.taints("n1") and "dry run: node n1 would be tainted" in caplog.text


def test_an_agent_that_calls_its_node_otherwise_is_told_of_once(
    cluster: StandIn, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.rows["n1"] = structs.replace(cluster.rows["n1"], node="n1.example.org")
    controller = start()
    with caplog.at_level(logging.INFO, "laggard.kubernetes"):
        for now in (0.0, 15.0):
            controller.round(now)
    assert cluster.condition("n1") is None and controller.last.misnamed == 1
    assert caplog.text.count("calls itself n1.example.org and is at the address of n1") == 1
    assert caplog.text.count("2 nodes: 2 healthy") == 1


def test_people_can_take_a_node_out(cluster: StandIn, start: Start) -> None:
    cluster.find("n1", "GPU_LOST")
    controller = start(taint="on")
    for now in (0.0, 1000.0):
        controller.round(now)
    assert cluster.taints("n1") and cluster.condition("n1")
    cluster.nodes["n1"]["metadata"]["annotations"][OPT_OUT] = "true"
    controller.round(1015.0)
    controller.round(1030.0)
    assert not cluster.taints("n1") and cluster.condition("n1") is None and cluster.condition("n2")


def test_while_the_collector_is_away_nothing_is_written_and_without_events_all_else_goes_on(
    cluster: StandIn, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    controller = start()
    controller.round(0.0)
    cluster.find("n1", "GPU_LOST")
    cluster.answers["collector"] = 503
    controller.round(15.0)
    assert cluster.condition("n1")[0] == "True" and "collector" in controller.last.failure
    cluster.answers.update(collector=200, events=403)
    controller.round(30.0)
    assert cluster.condition("n1")[0] == "False" and not controller.last.failure
    assert "events are not written for a while: cannot create an event on n1" in caplog.text


def test_it_is_healthy_while_rounds_are_completed_and_its_metrics_tell_of_the_last(
    cluster: StandIn, start: Start
) -> None:
    def asked(web: Web, path: str, method: str = "GET") -> tuple[int, str]:
        answer = web.handle(Request(method, path, "", ""))
        return answer.status.value, answer.body.decode()

    cluster.find("n1", "GPU_LOST")
    controller = start()
    controller.round(0.0)
    web = Web(lambda: controller.last, 60.0, lambda: 3)
    assert asked(web, "/-/healthy") == asked(web, "/-/ready") == (200, "healthy\n")
    metrics = asked(web, "/metrics")[1].splitlines()
    assert "laggard_controller_unhealthy_nodes 1.0" in metrics and "laggard_controller_held_back 0.0" in metrics
    out = Web(lambda: Round(out={("n2", "laggard", TAINT_KEY): 12.0}), 60.0)
    assert f'laggard_node_out{{by="laggard",hostname="n2",reason="{TAINT_KEY}"}} 12.0' in asked(out, "/metrics")[1]
    status, said = asked(web, "/nope")
    assert status == 404 and sorted(re.findall(r"/[-\w/]+", said)) == sorted(described_paths("controller"))
    assert asked(web, "/metrics", "POST")[0] == 405
    stalled = Web(lambda: Round(completed_at=time.time() - 120, failure="no route to host"), 0.0)
    assert asked(stalled, "/-/healthy") == (503, "no round is completed: no route to host\n")


def test_who_keeps_pods_from_a_node() -> None:
    def node(name: str, *keys: str) -> Node:
        taints = tuple(Taint(key, "", "NoSchedule", "2026-11-20T10:00:00Z") for key in keys)
        return Node(name, "1", frozenset(), False, None, taints)

    nodes = [
        node("n1", "dedicated"),
        node("n2", "node.kubernetes.io/unschedulable", "laggard/unhealthy"),
        node("n3", "node.kubernetes.io/unschedulable"),
        node("n4", "node.kubernetes.io/unreachable"),
    ]
    assert {key[:2]: at for key, at in out_of(nodes).items()} == {
        ("n2", "laggard"): 1795168800.0,
        ("n3", "administrator"): 1795168800.0,
        ("n4", "kubernetes"): 1795168800.0,
    }
