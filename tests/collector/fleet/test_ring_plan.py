"""Which nodes are to measure each other next."""

from __future__ import annotations

import itertools

import pytest

from laggard.collector.web.rings import MIN_RING_NODES, plan_rings
from laggard.wire.nodes import NodeRow

DAY = 86400.0


def row(number: int, age: float | None = None, verdict: str = "ok", state: str = "up", ranks: int = 0) -> NodeRow:
    return NodeRow(f"http://n{number}:1", f"n{number:02}", state, "", 0.0, verdict, (), tuple(range(ranks)), age)


def test_who_has_waited_longest_is_first_and_who_was_measured_lately_is_not_due() -> None:
    ages = [100.0, 2 * DAY, None, 5 * DAY, 3 * DAY, 1.5 * DAY]
    plan = plan_rings([row(number, age) for number, age in enumerate(ages)], DAY, 3)
    assert plan.rings == (("n02", "n03", "n04"), ("n01", "n05", "n00"))
    assert (plan.due, plan.measured, plan.busy, plan.failing, plan.silent) == (5, 1, 0, 0, 0)


def test_suspects_of_a_slow_link_come_first_whenever_they_were_measured() -> None:
    rows = [row(number, 100.0) for number in range(5)]
    assert plan_rings(rows, DAY, 4).rings == ()
    plan = plan_rings(rows, DAY, 4, {"n03", "n01", "elsewhere"})
    assert plan.rings == (("n01", "n03", "n00"),) and (plan.due, plan.measured) == (2, 3)


def test_nodes_that_work_fail_or_are_silent_are_left_out() -> None:
    nodes = [row(0), row(1, ranks=8), row(2, verdict="fail"), row(3, state="down"), row(4), row(5, verdict="unknown")]
    plan = plan_rings([*nodes, NodeRow("http://x:1", None, "waiting", "", None, None, (), ())], DAY, 8)
    assert plan.rings == (("n00", "n04", "n05"),)
    assert (plan.due, plan.busy, plan.failing, plan.silent) == (3, 1, 1, 1)


@pytest.mark.parametrize("free", [0, 1, 2])
def test_fewer_than_three_cannot_be_compared(free: int) -> None:
    plan = plan_rings([row(number) for number in range(free)], DAY, 8)
    assert plan.rings == () and plan.due == free


@pytest.mark.parametrize(("nodes", "size"), list(itertools.product((3, 4, 8, 9, 10, 17, 65), (3, 4, 8, 32))))
def test_every_node_that_is_due_is_in_a_ring_and_in_no_two_but_to_fill_the_last(nodes: int, size: int) -> None:
    plan = plan_rings([row(number) for number in range(nodes)], DAY, size)
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
            row(number, 3600.0 * hour - measured[number] if number in measured else None, ranks=number in busy)
            for number in range(10)
        ]
        for ring in plan_rings(nodes, DAY, 4).rings:
            measured.update({int(name[1:]): 3600.0 * hour for name in ring})
    assert measured.keys() == set(range(10))
