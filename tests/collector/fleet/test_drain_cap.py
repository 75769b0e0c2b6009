"""The drain cap: whether one more node may be drained."""

from __future__ import annotations

import pytest

from laggard.collector.fleet import drains_document
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.wire.nodes import NodeRow


def row(number: int, verdict: str = "ok", state: str = "up") -> NodeRow:
    return NodeRow(f"http://n{number}:19400", f"n{number}", state, "", 0.0, verdict, (), ())


def snapshot(total: int, failing: int = 0, silent: int = 0) -> ClusterSnapshot:
    rows = [row(i, "fail" if i < failing else "ok") for i in range(total - silent)]
    return ClusterSnapshot(nodes=(*rows, *(row(1000 + i, "unknown", "down") for i in range(silent))), rounds=1)


@pytest.mark.parametrize(
    ("total", "failing", "ratio", "cap", "may_drain"),
    [
        (100, 0, 0.05, 5, True),
        (100, 4, 0.05, 5, True),
        (100, 5, 0.05, 5, False),
        (100, 90, 0.05, 5, False),
        (3, 0, 0.05, 1, True),
        (3, 1, 0.05, 1, False),
        (100, 0, 0.0, 0, False),
        (100, 99, 1.0, 100, True),
    ],
)
def test_the_cap(total: int, failing: int, ratio: float, cap: int, may_drain: bool) -> None:
    document = drains_document(snapshot(total, failing), ratio, None)
    assert (document.cap, document.may_drain, document.failing) == (cap, may_drain, failing)
    assert f"of {total} nodes {failing} fail now, at most {cap} may be out at once" == document.reason


def test_the_node_that_asks_is_not_counted() -> None:
    assert not drains_document(snapshot(20, 1), 0.05, None).may_drain
    assert drains_document(snapshot(20, 1), 0.05, "n0").may_drain
    assert not drains_document(snapshot(20, 1), 0.05, "n7").may_drain


def test_a_node_that_reports_under_another_name_is_not_known() -> None:
    known = [drains_document(snapshot(20, 1), 0.05, node).asker_known for node in ("n0", "n0.example", None)]
    assert known == [True, False, True]


def test_without_an_answering_agent_no_node_may_be_drained() -> None:
    nobody = drains_document(snapshot(5, silent=5), 0.05, None)
    assert (nobody.may_drain, nobody.cap, nobody.reason) == (False, 0, "no agent answers")
    not_yet = drains_document(ClusterSnapshot(nodes=(row(0, state="waiting"),)), 0.05, None)
    assert not not_yet.may_drain and "not been asked yet" in not_yet.reason
    few = drains_document(snapshot(100, failing=1, silent=80), 0.05, None)  # a share of the nodes that answer
    assert (few.cap, few.may_drain, few.nodes, few.answering) == (1, False, 100, 20)


def test_a_node_whose_agent_is_kept_busy_still_fails() -> None:
    """Any user of a node can flood its agent, which then answers the collector late or not at all."""
    silent = (row(0, "unknown", "down"), row(1, "unknown", "slow"), *(row(i) for i in range(2, 40)))
    known = ClusterSnapshot(nodes=silent, rounds=1, last_failed=frozenset({"n0"}))
    asks = [drains_document(known, 0.05, node) for node in ("n0", "n1", "n2")]
    assert [it.asker_fails for it in asks] == [True, False, False]
    assert [it.failing for it in asks] == [0, 1, 1], "and the cap counts it"
    assert asks[0].may_drain
