"""What the collector decides for the fleet: how many nodes may drain, and which the next job leaves out."""

from typing import Any

import pytest
from support.rows import rows

from laggard.collector.fleet import Suspicion, drains_document, exclusions_document, job_users, why_not_its_machine
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.targets import JobUsers, NodeOut
from laggard.model import Culprit, CulpritStack, Finding, Fix, JobKey, RankEnd, Severity
from laggard.wire.exclusion import Confirmation, ExclusionsDocument
from laggard.wire.nodes import NodeFinding, NodeRow


def row(number: int, verdict: str = "ok", state: str = "up") -> NodeRow:
    return NodeRow(f"http://n{number}:19400", f"n{number}", state, "", 0.0, verdict, (), ())


def snapshot(total: int, failing: int = 0, silent: int = 0) -> ClusterSnapshot:
    rows = [row(i, "fail" if i < failing else "ok") for i in range(total - silent)]
    return ClusterSnapshot(nodes=(*rows, *(row(1000 + i, "unknown", "down") for i in range(silent))), rounds=1)


@rows("collector/drain_cap")
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


NOW = 1.79e9
HOUR = 3600.0


def finding(node: str, code: str = "GPU_ECC") -> NodeFinding:
    fix = Fix("replace it")
    return NodeFinding(f"http://{node}:19400", node, Finding(code, Severity.CRITICAL, "gpu0", "is bad", {}, fix, ""))


def fleet(failing: tuple[int, ...] = (), code: str = "GPU_ECC", **changes: Any) -> ClusterSnapshot:
    """Forty nodes, so that two may be out at once."""
    rows = tuple(row(number, verdict="fail" if number in failing else "ok") for number in range(40))
    found = tuple(finding(f"n{number}", code) for number in failing)
    last = frozenset(f"n{number}" for number in failing)
    return ClusterSnapshot(**{**dict(nodes=rows, findings=found, last_failed=last, rounds=1), **changes})


JOB = JobKey(1000, "train")


def suspicion(
    node: str,
    seen: float = 60.0,
    kind: str = "slow_compute",
    ratio: float = 0.2,
    ranks: tuple[int, ...] = (1, 2),
    job: JobKey = JOB,
    **culprit: Any,
) -> Suspicion:
    made = Culprit(kind=kind, ranks=ranks, node=node, **culprit)
    return Suspicion(7, job, made, f"rank 1 on {node} is slow", NOW - HOUR, NOW - seen, ratio)


def confirmation(node: str, outcome: Any, ago: float = 0.0) -> Confirmation:
    return Confirmation(node, outcome, NOW - ago, "bob", "it was so", ("n8", "n9"), 0.1)


def judged(snapshot: ClusterSnapshot, *values: Any, seconds: float = 2 * HOUR) -> ExclusionsDocument:
    suspicions = [it for it in values if isinstance(it, Suspicion)]
    return exclusions_document(
        snapshot, suspicions, [it for it in values if isinstance(it, Confirmation)], 0.05, seconds, NOW
    )


def named(document: ExclusionsDocument) -> list[str]:
    return [it.node for it in document.exclusions]


def test_a_critical_finding_leaves_its_node_out_as_long_as_it_stands() -> None:
    found = judged(fleet((3,), failing_since={"n3": NOW - 60}))
    (it,) = found.exclusions
    assert (it.node, it.basis, it.since, it.until, it.codes) == ("n3", "finding", NOW - 60, None, ("GPU_ECC",))
    assert (found.cap, found.unknown, judged(fleet()).exclusions) == (2, "", ())


def test_a_node_whose_agent_fell_silent_after_it_failed_stays_out() -> None:
    rows = (*fleet().nodes[1:], row(0, state="down", verdict="unknown"))
    (it,) = judged(fleet(nodes=rows, last_failed=frozenset(("n0",)))).exclusions
    assert (it.node, it.reason) == ("n0", "its agent fell silent after its checks had failed")


def test_what_many_nodes_share_leaves_out_none_of_them() -> None:
    together = frozenset(("n1", "n2"))
    found = judged(fleet((1, 2, 3), fleet_wide={"GPU_ECC": 3}, failing_together=together))
    assert named(found) == ["n3"]
    assert {it.node: it.why for it in found.left_in} == dict.fromkeys(
        together, "GPU_ECC has one cause that many nodes share"
    )


def test_a_culprits_node_is_out_for_its_time_after_it_was_last_named() -> None:
    (it,) = judged(fleet(), suspicion("n4", seen=HOUR), seconds=2 * HOUR).exclusions
    assert (it.node, it.basis, it.until, it.incidents) == ("n4", "culprit", NOW + HOUR, (7,))
    assert named(judged(fleet(), suspicion("n4", seen=HOUR), seconds=HOUR)) == []


def test_an_acquitted_suspect_is_in_again_until_it_is_named_once_more() -> None:
    busy_job = suspicion("n4", seen=60.0)
    found = judged(fleet(), busy_job, confirmation("n4", "acquitted", ago=30.0))
    assert named(found) == [] and "and acquitted" in found.left_in[0].why
    before = confirmation("n4", "acquitted", ago=2 * HOUR - 1)
    assert named(judged(fleet(), busy_job, before)) == ["n4"]


def test_a_confirmed_suspect_stays_out_for_its_time_whatever_its_checks_say() -> None:
    (it,) = judged(fleet(), confirmation("n4", "confirmed", ago=HOUR)).exclusions
    assert (it.basis, it.since, it.until) == ("confirmed", NOW - HOUR, NOW + HOUR)
    assert it.confirmation is not None and it.reason == "measured against n8, n9: it was so"
    assert named(judged(fleet(), confirmation("n4", "confirmed", ago=2 * HOUR + 1))) == []
    again = confirmation("n4", "acquitted", ago=1.0)
    assert named(judged(fleet(), confirmation("n4", "confirmed", ago=HOUR), again)) == []


def test_an_acquittal_ends_a_rings_finding_and_no_other() -> None:
    acquitted = confirmation("n3", "acquitted", ago=1.0)
    since = {"n3": NOW - HOUR}
    assert named(judged(fleet((3,), "RING_SLOW", failing_since=since), acquitted)) == []
    assert named(judged(fleet((3,), "GPU_ECC", failing_since=since), acquitted)) == ["n3"]


def test_the_worst_come_first_and_a_node_stands_once() -> None:
    found = judged(
        fleet((3, 4)), suspicion("n5", ratio=0.1), suspicion("n6", ratio=0.5), suspicion("n3"),
        confirmation("n7", "confirmed"),
    )  # fmt: skip
    assert named(found) == ["n7", "n3", "n4", "n6", "n5"]
    assert (found.exclusions[1].basis, found.exclusions[1].incidents) == ("finding", (7,))


def test_one_jobs_word_about_one_rank_leaves_no_node_out() -> None:
    """A finding, a measurement, another rank or another job is the second witness."""
    one = suspicion("n4", ranks=(1,))
    found = judged(fleet(), one, one)
    assert named(found) == [] and found.left_in[0].why.endswith(
        "suspect by one job alone, and not left out: laggard confirm n4 measures it"
    )
    assert named(judged(fleet(), suspicion("n4", ranks=(1,), findings=("GPU_THROTTLED",)))) == ["n4"]
    assert named(judged(fleet(), one, confirmation("n4", "confirmed"))) == ["n4"]
    assert named(judged(fleet(), one, suspicion("n4", ranks=(1,), job=JobKey(1001, "train")))) == ["n4"]
    assert named(judged(fleet(), one, suspicion("n4", ranks=(2,)))) == ["n4"]
    transient = suspicion("n4", ranks=(2,), persistence="transient")
    assert named(judged(fleet(), one, transient)) == [], "what accuses no machine is no witness"


def test_a_line_of_code_that_one_rank_alone_is_at_leaves_no_node_out_and_a_throttled_gpu_beside_it_does() -> None:
    line = CulpritStack("forward: 81 % of the samples", "Model.forward (slow_rank.py:19)", 1, (), only_here=True)
    found = judged(fleet(), suspicion("n4", stack=line), suspicion("n5", findings=("GPU_THROTTLED",)))
    assert named(found) == ["n5"]
    assert found.left_in[0].why.endswith("it alone is in Model.forward (slow_rank.py:19): look at the code")
    assert named(judged(fleet(), suspicion("n4", stack=line, findings=("GPU_THROTTLED",)))) == ["n4"]


@pytest.mark.parametrize(
    ("culprit", "is_its_machine"),
    [
        (Culprit("slow_compute", (0,), node="n1"), True),
        (Culprit("slow_host", (0,), node="n1"), True),
        (Culprit("corrupt", (0,), node="n1"), True),
        (Culprit("slow_compute", (0,), node="n1", persistence="transient"), False),
        (Culprit("slow_compute", (0,), node="n1", persistence="intermittent"), True),
        (Culprit("uneven_work", (0,), node="n1"), False),
        (Culprit("slow_input", (0,), node="n1"), False),
        (Culprit("hung", (0,), node="n1"), False),
        (Culprit("hung", (0,), node="n1", device_stopped=True), True),
        (Culprit("dead", (0,), node="n1", end=RankEnd(1.0, signal="SIGKILL", cause="out_of_memory")), False),
        (Culprit("dead", (0,), node="n1", end=RankEnd(1.0, cause="gpu_error")), True),
        (Culprit("slow_link", (), link=({"node": "n1"}, {"node": "n2"})), False),
        (Culprit("slow_link", (), link=({"node": "n1"}, {"node": "n1"})), True),
    ],
)
def test_only_what_is_its_machines_fault_leaves_it_out(culprit: Culprit, is_its_machine: bool) -> None:
    assert (why_not_its_machine(culprit) == "") is is_its_machine
    said = Suspicion(1, JOB, culprit, "text", NOW - HOUR, NOW, None)
    found = judged(fleet(), said, said._replace(job=JobKey(1001, "other")))
    assert ("n1" in named(found)) is is_its_machine
    assert bool(found.left_in) is not is_its_machine


def test_a_collector_that_knows_nothing_says_so() -> None:
    assert judged(ClusterSnapshot(nodes=(row(0, state="waiting"),))).unknown == "the agents have not been asked yet"
    assert judged(ClusterSnapshot(nodes=(row(0, state="down"),), rounds=3)).unknown == "no agent answers"
