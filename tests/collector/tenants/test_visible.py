"""What a user may see of values that a scrape in a test rarely has."""

from __future__ import annotations

import dataclasses

from msgspec import structs

from laggard.collector.incidents.incident import Incident
from laggard.collector.jobs.holdings import NotHeld
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.outliers import fleet_lines
from laggard.collector.tenants import Viewer
from laggard.collector.visible import visible, visible_incident
from laggard.locate.job_timings import NodeFindings, RankInfo, RankState, build_timings
from laggard.locate.slow.host_facts import neighbours_text
from laggard.model import CpuNeighbour, Culprit, Finding, Fix, JobKey, Location, Note, Severity, Verdict, Window
from laggard.wire.nodes import NodeFinding, NodeRow, RingPairs

ADA, BOB = Viewer(1, "ada"), Viewer(2, "bob")


def job(owner: int, *nodes: str) -> JobSnapshot:
    state = RankState("running", 7, "forward", None)
    codes = {node: NodeFindings(("DISK_FULL",)) for node in ("n0", "n1")}
    timings = build_timings(
        "j", len(nodes), {r: RankInfo(node, None, state) for r, node in enumerate(nodes)}, {}, codes
    )
    culprit = Culprit("slow_link", (0,), node=nodes[0], findings=("DISK_FULL", "HOOK_BLIND"))
    location = Location(Verdict.FAIL, "j", len(nodes), len(nodes), Window(), None, (culprit,), (), owner=owner)
    urls = frozenset(f"http://{node}" for node in nodes)
    return JobSnapshot(JobKey(owner, "j"), True, timings, location, agents=urls)


def row(node: str) -> NodeRow:
    pairs = RingPairs(("n0", "secret-node"), 1, ((0, 1, 1.0),))
    codes = ("DISK_FULL", "HOOK_BLIND")
    return NodeRow(f"http://{node}", node, "up", "secret reason", 1.0, "fail", codes, (0, 1, 2), 5.0, pairs)


def found(node: str, code: str, owner: int | None = None) -> NodeFinding:
    evidence = {} if owner is None else {"owner": owner, "value": "secret value"}
    finding = Finding(code, Severity.WARNING, "secret device", "secret words", evidence, Fix("secret fix"), "doc")
    return NodeFinding(f"http://{node}", node, finding)


WHOLE = ClusterSnapshot(
    nodes=(row("n0"), row("n1")),
    ignored="secret file",
    findings=(
        found("n0", "DISK_FULL"),
        found("n0", "HOOK_BLIND", 2),
        found("n1", "DISK_FULL"),
        found("n0", "NEW_CODE"),
    ),
    fleet_findings=(found("n0", "FLEET_OUTLIER"), found("n1", "FLEET_OUTLIER")),
    fleet_notes=(Note("discovery", "secret file of targets"),),
    jobs=(job(2, "n0", "n1"), job(1, "n0")),
    not_held=NotHeld({JobKey(1, "mine"): 1, JobKey(2, "secret job"): 4}, frozenset({JobKey(2, "secret job")})),
)


def test_a_user_sees_the_nodes_of_their_jobs_and_no_text_about_others() -> None:
    seen = visible(WHOLE, ADA)
    assert "secret" not in repr(dataclasses.replace(seen, jobs=()))
    assert [it.key.owner for it in seen.jobs] == [1] and [it.node for it in seen.nodes] == ["n0"]
    assert seen.nodes[0].ranks == (0,) and seen.nodes[0].findings == ("DISK_FULL",)
    assert [it.finding.code for it in seen.findings] == ["DISK_FULL"], "a code in no list is not shown"
    assert seen.jobs[0].location.culprits[0].findings == ("DISK_FULL",)
    assert seen.not_held.text().startswith("1 rank of user 1 is not watched")
    assert len(fleet_lines(seen.fleet_findings, seen.fleet_notes)) == 1
    assert {it.node for it in visible(WHOLE, BOB).nodes} == {"n0", "n1"}


def test_an_operator_sees_everything() -> None:
    assert visible(WHOLE, Viewer(None, "ops")) is WHOLE


def test_a_user_without_jobs_is_told_so_and_of_no_node() -> None:
    seen = visible(WHOLE, Viewer(3, "eve"))
    assert (seen.nodes, seen.findings, seen.jobs) == ((), (), ())
    assert seen.location(None).notes[0].text == "no job of user eve is known, and no other is shown to them"


def test_a_job_that_only_says_where_it_runs_shows_no_node() -> None:
    """As one that Prometheus alone knows: its user may have said so, no agent did."""
    claimed = dataclasses.replace(job(1, "n1"), agents=frozenset())
    assert visible(dataclasses.replace(WHOLE, jobs=(claimed,)), ADA).nodes == ()


def test_incidents_hide_neighbours_as_verdicts_do() -> None:
    neighbours = (CpuNeighbour(41, 2, 3.0, "secret"), CpuNeighbour(42, 1, 2.0, "own"))
    line = f"waited{neighbours_text(neighbours)}"
    culprit = Culprit("slow_host", (0,), evidence=(line, "busier"), neighbours=neighbours)
    incident = Incident(1, 1, "j", "what", 0.0, 0.0, culprit, culprit)
    kept = visible_incident(incident, 1).culprit
    words = "another user's process ran 3.00 s and process 42 (own) of user 1 ran 2.00 s on its cores"
    assert kept.evidence == (f"waited: {words}", "busier")
    for changed in (
        structs.replace(culprit, neighbours=None),  # of a database that does not tell them
        structs.replace(culprit, evidence=(line[:-9], "busier")),  # cut short in the database
    ):
        assert visible_incident(structs.replace(incident, opened_as=changed), 1).opened_as.evidence == ()
