"""The controller's decisions as values: what the breaker lets through, what becomes of a node, which patches."""

import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from support.fronts import served_by
from support.rows import rows

from laggard.kit.errors import UsageError
from laggard.kubernetes.api_server import ApiError, ApiServer, Exchange
from laggard.kubernetes.breaker import Fleet, Limits, Streaks, permit
from laggard.kubernetes.controller import (
    FLEET_BURST,
    FLEET_SECONDS,
    NODE_BURST,
    NODE_SECONDS,
    PAUSE_SECONDS,
    Event,
    Events,
    Taints,
)
from laggard.kubernetes.judge import FleetView, judge, misnamed, misnamed_line, summary
from laggard.kubernetes.node import ApiNode, Condition, Health, Node, Taint, condition_patch, taint_patch, unix_time
from laggard.kubernetes.settings import ControllerSettings
from laggard.wire.nodes import NodeRow

LIMITS = Limits(max_ratio=0.05, per_hour=2, min_answering_ratio=0.5)


def fleet(
    nodes: int, failing: int, answering: int | None = None, ages: tuple[float, ...] = (), tainted: int = 0
) -> Fleet:
    names = [f"n{number}" for number in range(nodes)]
    bad = names[:failing]
    return Fleet(names, names[: nodes if answering is None else answering], bad, bad[tainted:], ages)


def node(name: str = "n1", **changes: Any) -> Node:
    return Node(name, "7", frozenset({"10.0.0.1"}), False, None, ())._replace(**changes)


def row(url: str = "http://10.0.0.1:19400", name: str | None = "n1", **changes: Any) -> NodeRow:
    values: dict[str, Any] = dict(state="up", reason="", last_seen_seconds=0.0, verdict="ok", findings=(), ranks=())
    return NodeRow(url=url, node=name, **{**values, **changes})


def condition(status: str) -> Condition:
    return Condition("LaggardHealthy", status, "Healthy", "", None, "2026-01-01T00:00:00Z")


@rows("kubernetes/breaker")
def test_the_breaker(state: dict[str, Any], tainted: int, why: str) -> None:
    permission = permit(fleet(**state), LIMITS)
    assert len(permission.taint) == tainted and permission.held_back.startswith(why)
    assert bool(permission.held_back) == bool(why)


def test_a_ratio_of_0_taints_nothing() -> None:
    assert not permit(fleet(100, 1), LIMITS._replace(max_ratio=0.0)).taint


@rows("kubernetes/conditions")
def test_what_becomes_of_a_nodes_condition(told: dict[str, Any], status: str, reason: str) -> None:
    found = judge([node()], FleetView((row(**told),), {}))["n1"]
    assert (found.status, found.reason) == (status, reason) and "\n" not in found.message


def test_a_healthy_nodes_message_says_what_was_not_checked() -> None:
    skipped = "22 of 46 checks skipped: no NVIDIA GPU among 5 PCI devices (14)"
    found = judge([node()], FleetView((row(skipped_as=1),), {}, ("of other nodes", skipped)))["n1"]
    assert found == Health("True", "Healthy", f"no critical finding; {skipped}")
    assert len(judge([node()], FleetView((row(skipped_as=0),), {}, ("x" * 5000,)))["n1"].message) < 500
    for place in (None, 2, -1):  # whatever a collector says
        found = judge([node()], FleetView((row(skipped_as=place),), {}, ("x", skipped)))["n1"]
        assert found.message == "no critical finding"


def test_an_agent_with_a_name_of_no_node_is_told_of_with_both_names() -> None:
    here = node("gpu-4")
    named = row("http://10.0.0.1:19400", "gpu-4.example.org")
    found = misnamed([here], FleetView((named, row("http://10.9.9.9:19400", "of-another-cluster")), {}))
    assert [(each.reported, each.node) for each in found] == [("gpu-4.example.org", "gpu-4")]
    line = misnamed_line(found)
    assert "http://10.0.0.1:19400 calls itself gpu-4.example.org and is at the address of gpu-4" in line
    assert line.endswith("set LAGGARD_NODE there to the node's name") and "\n" not in line
    assert not misnamed([here], FleetView((row(name="gpu-4"), row(name=None)), {}))
    assert len(misnamed_line(found * 5000)) < 1500 and " and 4997 more" in misnamed_line(found * 5000)


def test_how_the_nodes_are_is_one_line() -> None:
    well, lost, silent = Health("True", "Healthy", ""), Health("False", "GPU_LOST", ""), Health("Unknown", "X", "")
    assert summary({"a": well}) == "1 node: 1 healthy"
    three = {"a": well, "b": lost, "c": lost, "d": silent}
    assert summary(three) == "4 nodes: 1 healthy, 2 unhealthy (GPU_LOST 2), 1 unknown (X 1)"
    assert summary({}) == "no node of Kubernetes has an agent that the collector knows"


def test_who_has_not_been_asked_yet_keeps_the_condition_and_who_has_no_agent_has_none() -> None:
    assert not judge([node()], FleetView((row(state="waiting", name=None, verdict=None),), {}))
    assert not judge([node()], FleetView((), {}))
    assert judge([node(condition=condition("True"))], FleetView((), {}))["n1"].reason == "NoAgent"


def test_the_agent_at_the_nodes_own_address_is_believed_before_another_of_its_name() -> None:
    liar = row("http://10.9.9.9:19400", verdict="fail", findings=("GPU_LOST",))
    assert judge([node()], FleetView((liar, row()), {}))["n1"].status == "True"


def test_the_time_of_the_transition_changes_with_the_status_alone() -> None:
    before = node(condition=condition("True"))
    now = "2026-02-02T00:00:00Z"
    (same,) = condition_patch(before, Health("True", "Healthy", "more"), now)["status"]["conditions"]
    (other,) = condition_patch(before, Health("False", "X", ""), now)["status"]["conditions"]
    assert (same["lastTransitionTime"], same["lastHeartbeatTime"]) == ("2026-01-01T00:00:00Z", now)
    assert other["lastTransitionTime"] == now


def test_a_patch_of_taints_keeps_the_others_and_holds_for_one_version() -> None:
    theirs, old = Taint("a", "b", "NoExecute", "2026-01-01T00:00:00Z"), Taint("laggard/unhealthy", "X", "NoSchedule")
    patch = taint_patch(node(taints=(old, theirs)), None)
    assert patch["metadata"] == {"resourceVersion": "7"}
    shown = {"key": "a", "value": "b", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    assert patch["spec"]["taints"] == [shown]
    assert taint_patch(node(taints=(old,)), None)["spec"]["taints"] is None


@pytest.mark.parametrize(("value", "out"), [("true", True), ("yes", True), ("false", False), ("", False)])
def test_the_annotation_that_takes_a_node_out(value: str, out: bool) -> None:
    found = msgspec.convert({"metadata": {"name": "n", "annotations": {"laggard/ignore": value}}}, ApiNode).node()
    assert found.opted_out is out and found.taint is None


def test_a_streak_begins_anew_with_each_change_and_with_a_restart() -> None:
    streaks = Streaks()
    streaks.update({"a": "False"}, 0.0)
    streaks.update({"a": "False"}, 100.0)
    assert streaks.lasts("a", "False", 120.0) == 120.0 and streaks.lasts("a", "True", 120.0) < 0
    streaks.update({"a": "Unknown"}, 130.0)
    streaks.update({"a": "False"}, 140.0)
    assert streaks.lasts("a", "False", 150.0) == 10.0
    streaks.update({}, 160.0)
    assert streaks.lasts("a", "False", 170.0) < 0


def test_a_taints_time_of_somebody_else_is_not_counted() -> None:
    assert unix_time("2026-01-01T00:00:00Z") == 1767225600 and unix_time("soon") == unix_time("") == 0


class Patches:
    """In place of an API server that takes every patch."""

    def __init__(self) -> None:
        self.patched: list[str] = []

    def patch(self, name: str, _: object) -> None:
        self.patched.append(name)


@pytest.mark.parametrize("jump_seconds", [7200, -7200])
def test_a_clock_that_is_set_opens_no_breaker(jump_seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    api, streaks = Patches(), Streaks()
    settings = ControllerSettings(taint="on", failing_seconds=0.0, max_taints_per_hour=1, max_tainted_ratio=1.0)
    events = Events(api, enabled=False)  # type: ignore[arg-type]
    taints, bad = Taints(api, events, streaks, settings), Health("False", "GPU_LOST", "")  # type: ignore[arg-type]
    nodes = {name: node(name) for name in ("a", "b")}
    health = dict.fromkeys(nodes, bad)
    streaks.update({name: "False" for name in nodes}, 0.0)
    assert taints.write(nodes, health, 1.0) == [] and api.patched == ["a"]
    true_time = time.time
    monkeypatch.setattr("laggard.kubernetes.controller.time.time", lambda: true_time() + jump_seconds)
    assert taints.write({"b": nodes["b"]}, {"b": bad}, 2.0) == [] and api.patched == ["a"]
    assert "1 node tainted within an hour" in taints.held_back


class Recorder:
    """In place of an API server: takes every event, or, while `refusal` says so, none."""

    def __init__(self) -> None:
        self.refusal = ""
        self.asked = 0
        self.told: list[str] = []

    def create_event(self, event: dict[str, Any]) -> None:
        self.asked += 1
        if self.refusal:
            raise ApiError(self.refusal)
        self.told.append(event["involvedObject"]["name"])


def tell(events: Events, names: list[str], now: float) -> None:
    for name in names:
        events.add(Event(node(name), True, "GPU_LOST", "gone"))
    events.send(now)


def test_a_node_that_comes_and_goes_writes_few_events() -> None:
    api = Recorder()
    events = Events(api, enabled=True)  # type: ignore[arg-type]
    for second in range(100):
        tell(events, ["a"], float(second))
    assert len(api.told) == NODE_BURST
    tell(events, ["a", "b"], 100.0 + NODE_SECONDS)
    assert api.told[NODE_BURST:] == ["a", "b"]


def test_a_fleet_that_fails_at_once_writes_events_for_some_of_it() -> None:
    api = Recorder()
    events = Events(api, enabled=True)  # type: ignore[arg-type]
    names = [f"n{number}" for number in range(1000)]
    tell(events, names, 0.0)
    assert api.told == names[:FLEET_BURST]
    tell(events, names, 10 * FLEET_SECONDS)
    assert len(api.told) == FLEET_BURST + 10


def test_an_event_that_fails_is_not_waited_for_again_and_again() -> None:
    api = Recorder()
    events = Events(api, enabled=True)  # type: ignore[arg-type]
    api.refusal = "cannot create an event: HTTP 403"
    tell(events, ["a", "b", "c"], 0.0)
    tell(events, ["a"], PAUSE_SECONDS - 1)
    assert api.asked == 1
    api.refusal = ""
    tell(events, ["d"], PAUSE_SECONDS + 1)
    assert api.told == ["d"]


def test_outside_of_a_cluster_it_says_what_to_set() -> None:
    exchange = Exchange(1.0)
    with pytest.raises(UsageError, match="set api_server, token_file and ca_file"):
        ApiServer(exchange, "", "/nowhere", {})
    ApiServer(exchange, "", "/nowhere", {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    exchange.close()


def test_a_refusal_of_any_length_is_one_line() -> None:
    """A collector or API server, or who took its place, may send 64 MB of it."""
    body = b'{"message": "' + b"no \\n" * 1_000_000 + b'"}'
    with served_by(lambda *_: (500, body)) as url:
        exchange = Exchange(60.0)
        tracemalloc.start()
        try:
            said = exchange.send("GET", url)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            exchange.close()
    assert said.status == 500 and said.why.startswith("HTTP 500: no no") and len(said.why) <= 300
    assert peak < 60e6  # 100 MB and more where all of it is made printable
