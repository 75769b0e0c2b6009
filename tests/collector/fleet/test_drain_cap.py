"""The drain cap: whether one more node may be drained."""

from __future__ import annotations

import pytest

from laggard.collector.fleet import drains_document, job_users
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.targets import JobUsers, NodeOut
from laggard.model import Finding, Fix, Severity
from laggard.wire.nodes import NodeFinding, NodeRow


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


def test_of_several_that_fail_at_once_the_first_ones_are_drained() -> None:
    """By when they began, then by name; and what laggard has drained comes before."""
    since = {"n0": 20.0, "n1": 10.0, "n2": 10.0}
    rows = tuple(row(i, "fail" if i < 3 else "ok") for i in range(4))
    known = ClusterSnapshot(nodes=rows, rounds=1, failing_since=since)
    assert [drains_document(known, 0.05, f"n{i}").may_drain for i in range(3)] == [False, True, False]
    n2_is_out = {"n2": NodeOut("laggard", 0.0, "laggard: DISK_FULL /")}
    drained = ClusterSnapshot(nodes=rows, rounds=1, failing_since=since, out=n2_is_out)
    assert [drains_document(drained, 0.05, f"n{i}").may_drain for i in range(3)] == [False, False, True]
    repaired = ClusterSnapshot(nodes=(rows[0], *map(row, (1, 2, 3))), rounds=1, failing_since=since, out=n2_is_out)
    assert not drains_document(repaired, 0.05, "n0").may_drain, "it is well, and not resumed yet"
    unknown = ClusterSnapshot(nodes=rows, rounds=1)
    assert not any(drains_document(unknown, 0.05, f"n{i}").may_drain for i in range(3)), "any of them may be drained"


def test_a_node_that_is_seen_well_says_so() -> None:
    silent = ClusterSnapshot(nodes=(row(0), row(1, "fail"), row(2, "unknown", "down")), rounds=1)
    assert [drains_document(silent, 0.05, f"n{i}").asker_is_well for i in range(3)] == [True, False, False]


def holes(*nodes: int) -> tuple[NodeFinding, ...]:
    return tuple(
        NodeFinding(
            f"http://n{it}:19400",
            f"n{it}",
            Finding("JOBS_FAIL_AT_ONCE", Severity.CRITICAL, "jobs", "", {"users": [1, 2, 3]}, Fix(""), ""),
        )
        for it in nodes
    )


def test_a_black_hole_is_drained_and_a_fault_that_all_share_drains_nobody() -> None:
    def may_drain(jobs: dict[str, JobUsers], *fail: int) -> bool:
        rows = tuple(row(i, "fail" if i in fail else "ok") for i in range(4))
        return drains_document(
            ClusterSnapshot(nodes=rows, findings=holes(*fail), rounds=1, job_users=jobs), 1.0, "n0"
        ).may_drain

    here = {"n0": JobUsers(failed=frozenset({1, 2, 3}))}
    ran = JobUsers(ran=frozenset({4, 5, 6}))
    assert may_drain(here, 0) and may_drain({**here, "n1": ran, "n2": ran}, 0)
    fail = JobUsers(failed=frozenset({4, 5, 6}))
    assert not may_drain({**here, "n1": fail}, 0), "others' jobs fail on other nodes, too"
    assert not may_drain({**here, "n1": JobUsers(failed=frozenset({1}))}, 0), "one of them has a broken program"
    assert not may_drain({**here, **{f"n{i}": JobUsers(frozenset({1, 2, 3})) for i in (1, 2)}}, 0, 1, 2)
    two = {**here, "n1": JobUsers(frozenset({1, 2, 3})), "n2": ran}
    assert not may_drain(two, 0, 1), "two of four are no small share"


def test_what_an_agent_tells_of_jobs_may_be_anything() -> None:
    told = {"jobs": {"users": {"failed": [1, "x"], "ran": [2], "living": [3]}}}
    assert job_users(told) == JobUsers(frozenset({1}), frozenset({2}))
    for facts in ({}, {"jobs": 1}, {"jobs": {"users": []}}, {"jobs": {"users": {"failed": 7}}}):
        assert job_users(facts) == JobUsers()
