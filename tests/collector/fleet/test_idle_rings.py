"""Idle rings as the collector plans them, and signed questions that are answered once."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from starlette.applications import Starlette
from starlette.testclient import TestClient
from support.made_snapshot import Source

from laggard.collector.incidents.incident import Incident
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import all_routes
from laggard.collector.web.rings import MIN_RING_NODES, Answer, IdleRings, plan_rings, ring_suspects
from laggard.collector.web.signed_requests import Nonces
from laggard.model import Culprit
from laggard.wire import decode, encode
from laggard.wire.idle_rings import RingAsk, RingDue
from laggard.wire.nodes import NodeRow
from laggard.wire.signing import RING_AGENT, RING_COLLECTOR, signed, signer

DAY = 86400.0


def idle(number: int, age: float | None = None, verdict: str = "ok", state: str = "up", ranks: int = 0) -> NodeRow:
    return NodeRow(f"http://n{number}:1", f"n{number:02}", state, "", 0.0, verdict, (), tuple(range(ranks)), age)


def test_who_has_waited_longest_is_first_and_who_was_measured_lately_is_not_due() -> None:
    ages = [100.0, 2 * DAY, None, 5 * DAY, 3 * DAY, 1.5 * DAY]
    plan = plan_rings([idle(number, age) for number, age in enumerate(ages)], DAY, 3)
    assert plan.rings == (("n02", "n03", "n04"), ("n01", "n05", "n00"))
    assert (plan.due, plan.measured, plan.busy, plan.failing, plan.silent) == (5, 1, 0, 0, 0)


def test_suspects_of_a_slow_link_come_first_whenever_they_were_measured() -> None:
    rows = [idle(number, 100.0) for number in range(5)]
    assert plan_rings(rows, DAY, 4).rings == ()
    plan = plan_rings(rows, DAY, 4, {"n03", "n01", "elsewhere"})
    assert plan.rings == (("n01", "n03", "n00"),) and (plan.due, plan.measured) == (2, 3)


def test_nodes_that_work_fail_or_are_silent_are_left_out() -> None:
    nodes = [
        idle(0),
        idle(1, ranks=8),
        idle(2, verdict="fail"),
        idle(3, state="down"),
        idle(4),
        idle(5, verdict="unknown"),
    ]
    plan = plan_rings([*nodes, NodeRow("http://x:1", None, "waiting", "", None, None, (), ())], DAY, 8)
    assert plan.rings == (("n00", "n04", "n05"),)
    assert (plan.due, plan.busy, plan.failing, plan.silent) == (3, 1, 1, 1)


@pytest.mark.parametrize("free", [0, 1, 2])
def test_fewer_than_three_cannot_be_compared(free: int) -> None:
    plan = plan_rings([idle(number) for number in range(free)], DAY, 8)
    assert plan.rings == () and plan.due == free


@pytest.mark.parametrize(("nodes", "size"), list(itertools.product((3, 4, 8, 9, 10, 17, 65), (3, 4, 8, 32))))
def test_every_node_that_is_due_is_in_a_ring_and_in_no_two_but_to_fill_the_last(nodes: int, size: int) -> None:
    plan = plan_rings([idle(number) for number in range(nodes)], DAY, size)
    members = [name for ring in plan.rings for name in ring]
    assert set(members) == {f"n{number:02}" for number in range(nodes)}
    assert all(MIN_RING_NODES <= len(set(ring)) == len(ring) <= size for ring in plan.rings)
    assert len(members) - nodes <= MIN_RING_NODES - 1


def test_a_fleet_is_covered_in_a_period_whoever_is_busy_in_between() -> None:
    """Ten nodes, of which others are busy each hour: within a day each was measured."""
    measured: dict[int, float] = {}
    for hour in range(24):
        busy = {(hour + step) % 10 for step in range(5)}
        nodes = [
            idle(number, 3600.0 * hour - measured[number] if number in measured else None, ranks=number in busy)
            for number in range(10)
        ]
        for ring in plan_rings(nodes, DAY, 4).rings:
            measured.update({int(name[1:]): 3600.0 * hour for name in ring})
    assert measured.keys() == set(range(10))


SETTINGS = CollectorSettings(ring_period_seconds=DAY, ring_nodes=4, ring_ask_seconds=30.0)


def row(number: int, age: float | None = None, verdict: str = "ok", ranks: int = 0, host: str = "10.0.0") -> NodeRow:
    url = f"http://{host}.{number + 1}:19400"
    return NodeRow(url, f"n{number}", "up", "", 0.0, verdict, (), tuple(range(ranks)), age)


def ask_all(rings: IdleRings, rows: list[NodeRow], at: float, suspects: tuple[str, ...] = ()) -> dict[str, Answer]:
    return {row.node or "": rings.answer(row.node or "", rows, suspects, at) for row in rows}


def test_all_nodes_of_a_ring_learn_the_same_and_begin_at_one_moment() -> None:
    rings, rows = IdleRings(SETTINGS), [row(number) for number in range(4)]
    first = {node: answer.ring for node, answer in ask_all(rings, rows, 0.0).items()}
    assert [first["n0"], first["n1"], first["n2"]] == [None] * 3, "the first to ask wait for more"
    then = {node: rings.answer(node, rows, (), 10.0 + 5 * at).ring for at, node in enumerate(("n0", "n1", "n2"))}
    tasks = {**then, "n3": first["n3"]}
    begins = {node: task.begin_seconds for node, task in tasks.items() if task}
    assert begins == {"n0": 25.0, "n1": 20.0, "n2": 15.0, "n3": 35.0}
    assert [task.number for task in map(tasks.get, ("n0", "n1", "n2", "n3")) if task] == [0, 1, 2, 3]
    assert {(task.id, task.nodes, task.host, task.second_host) for task in tasks.values() if task} == {
        (tasks["n0"].id if tasks["n0"] else "", ("n0", "n1", "n2", "n3"), "10.0.0.1", "10.0.0.2")
    }


def test_fewer_than_a_whole_ring_begin_when_all_have_asked() -> None:
    rings, rows = IdleRings(SETTINGS), [row(number) for number in range(3)]
    assert all(answer.ring is None for answer in ask_all(rings, rows, 0.0).values())
    assert all(answer.ring for answer in ask_all(rings, rows, 30.0).values())


def test_who_was_measured_fails_or_trains_gets_none_and_is_told_why() -> None:
    rows = [row(0, 3600.0), row(1, verdict="fail"), row(2, ranks=8), row(3)]
    rings = IdleRings(SETTINGS)
    ask_all(rings, rows, 0.0)
    reasons = {node: answer.reason for node, answer in ask_all(rings, rows, 30.0).items()}
    assert reasons["n0"] == "a ring measured the node 1.0 hours ago"
    assert reasons["n1"].startswith("the node fails its checks") and reasons["n2"] == "ranks run on the node"
    assert reasons["n3"].startswith("4 idle nodes ask, and a ring needs 3")
    assert rings.answer("elsewhere", rows, (), 30.0).reason.startswith("the collector has no answer of this node's")


def test_a_suspect_of_a_slow_link_is_due_at_once_and_takes_others_along() -> None:
    rows = [row(number, 3600.0) for number in range(4)]
    rings = IdleRings(SETTINGS)
    ask_all(rings, rows, 0.0)
    task = rings.answer("n2", rows, ("n2",), 30.0).ring
    assert task is not None and task.nodes[0] == "n2" and len(task.nodes) == 3


def test_both_machines_of_a_slow_link_are_suspects_until_a_ring_has_measured_them() -> None:
    link = Culprit("slow_link", (1, 3), nodes=("n0", "n1"))
    incident = Incident(1, 1000, "j", "what", time.time() - 900.0, time.time() - 600.0, link, link)
    asked_since: list[float] = []

    def slow_links(since: float) -> list[Incident]:
        asked_since.append(since)
        return [incident]

    nodes = (row(0, 3600.0), row(1, 60.0), row(2))
    source: Any = SimpleNamespace(
        snapshot=SimpleNamespace(nodes=nodes), incidents=SimpleNamespace(slow_links=slow_links)
    )
    assert ring_suspects(source, DAY) == {"n0"}, "a minute ago a ring measured n1"
    assert asked_since == [pytest.approx(time.time() - DAY, abs=60.0)]


def test_a_ring_that_came_to_nothing_is_not_repeated_at_once() -> None:
    rings, rows = IdleRings(SETTINGS), [row(number) for number in range(4)]
    ask_all(rings, rows, 0.0)
    late = {answer.reason for answer in ask_all(rings, rows, 40.0).values()}
    assert late == {"the node's ring began without it"}
    after = ask_all(rings, rows, 400.0)
    assert all(answer.ring is None for answer in after.values())
    assert {answer.reason for answer in after.values()} == {"a ring of the node's is not long ago"}
    ask_all(rings, rows, 1000.0)
    assert any(answer.ring for answer in ask_all(rings, rows, 1030.0).values())


def test_each_idle_node_is_measured_once_in_a_period() -> None:
    """Twenty nodes that ask each half minute for two hours; their agents tell of their rings a minute later."""
    rings, measured = IdleRings(SETTINGS), dict[str, list[float]]()
    for at in range(0, 7200, 30):
        rows = [
            row(number, at - measured[name][-1] if (name := f"n{number}") in measured else None) for number in range(20)
        ]
        for name, answer in ask_all(rings, rows, float(at)).items():
            if answer.ring:
                begins = at + answer.ring.begin_seconds
                if begins not in measured.setdefault(name, []):
                    measured[name].append(begins)
    assert len(measured) == 20 and {len(times) for times in measured.values()} == {1}


@pytest.mark.parametrize("host", ["127.0.0", "10.0.0"])
def test_where_the_first_node_is_the_collectors_own_it_goes_by_its_name(host: str) -> None:
    rows = [row(0, host="127.0.0"), *(row(number, host=host) for number in range(1, 4))]
    rings = IdleRings(SETTINGS)
    task = next(answer.ring for answer in ask_all(rings, rows, 0.0).values() if answer.ring)
    assert task.host == ("127.0.0.1" if host == "127.0.0" else "n0")


def test_who_has_the_token_is_answered_with_it(tmp_path: Path) -> None:
    """What is refused of a signed question, whatever it asks, is in web/test_stacks.py."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("right")

    def post(settings: CollectorSettings, key: str) -> Any:
        client = TestClient(Starlette(routes=all_routes(Source(ClusterSnapshot(nodes=())), settings)))
        ask = RingAsk("n0", time.time(), "n" * 32)
        return client.post("/api/v1/rings/due", content=encode(signed(key, RING_AGENT, ask)))

    with_token = structs.replace(SETTINGS, ring_token_file=str(token))
    due = decode(post(with_token, "right").content, RingDue)
    assert due.ring is None and due.nonce == "n" * 32 and signer(["right"], RING_COLLECTOR, due)
    assert not signer(["wrong"], RING_COLLECTOR, due) and not signer(["right"], RING_AGENT, due)
    wrong, off = post(with_token, "wrong"), post(SETTINGS, "right")
    assert (wrong.status_code, wrong.text) == (403, "another token than the collector's\n")
    assert off.text == "no ring is ever due here: this collector has no ring_token_file\n"


NONCE = "0123456789abcdef"


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_step_of_the_clock_there_and_back_makes_no_question_new() -> None:
    nonces = Nonces(300.0, 4, 0.0, Clock())
    assert nonces.refusal(NONCE, 1000.0, 1001.0) == ""
    assert nonces.refusal("f" * 16, 4600.0, 4600.0) == ""
    assert nonces.refusal(NONCE, 1000.0, 1002.0) == "this was asked before"
    assert "s apart" in nonces.refusal("e" * 16, float("nan"), 1000.0)


def test_what_was_asked_before_the_start_counts_for_nothing() -> None:
    nonces = Nonces(300.0, 4, 1010.0, Clock())
    assert "before the collector started" in nonces.refusal(NONCE, 1000.0, 1011.0)
    assert nonces.refusal(NONCE, 1010.5, 1011.0) == ""


def test_room_comes_back_when_the_oldest_cannot_be_said_again() -> None:
    clock = Clock()
    nonces = Nonces(300.0, 4, 0.0, clock)
    for number in range(4):
        assert nonces.refusal(str(number) * 16, 1000.0, 1000.0) == ""
    assert nonces.refusal("a" * 16, 1000.0, 1000.0) == "too many questions: ask again later"
    clock.now += 601.0
    assert nonces.refusal("a" * 16, 1601.0, 1601.0) == ""
    assert "s apart" in nonces.refusal("b" * 16, 1000.0, 1601.0)
