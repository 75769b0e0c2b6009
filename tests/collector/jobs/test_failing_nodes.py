"""Where no job runs, the answer says which nodes fail their health checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from support.timings import job as timings_of

from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.node_findings import failing_note
from laggard.locate.describe import details, sentence
from laggard.locate.verdict import locate
from laggard.model import Finding, Fix, JobKey, Severity, Verdict
from laggard.wire.nodes import NodeFinding, NodeRow

HOW = "Keep jobs off them until that is mended: laggard findings explain"


def row(node: str, verdict: str = "fail") -> NodeRow:
    return NodeRow(f"http://{node}:1", node, "up", "", 1.0, verdict, (), ())


def found(node: str, code: str, severity: Severity = Severity.CRITICAL) -> NodeFinding:
    return NodeFinding(f"http://{node}:1", node, Finding(code, severity, "gpu0", "summary", {}, Fix("fix"), "doc"))


def text(nodes: Sequence[NodeRow], findings: Sequence[NodeFinding]) -> str:
    note = failing_note(nodes, findings)
    return note.text if note else ""


def test_two_nodes_that_fail_are_named_with_what_was_found() -> None:
    nodes = (row("n1", "ok"), row("n10"), row("n9"), row("n2", "unknown"))
    findings = (found("n9", "GPU_LOST"), found("n10", "GPU_LOST"), found("n9", "CLOCK_SKEW", Severity.WARNING))
    assert text(nodes, findings) == f"2 of 4 nodes fail the health checks: GPU_LOST on n9 and n10. {HOW} GPU_LOST"
    one = "1 of 1 node fails the health checks: DISK_FULL on n3. Keep jobs off it until that is mended: "
    assert text((row("n3"),), (found("n3", "DISK_FULL"),)) == f"{one}laggard findings explain DISK_FULL"


def test_nodes_are_told_by_what_most_of_them_have_and_hostile_names_stay_on_the_line() -> None:
    nodes = (row("n1"), row("n2\n\x1b[31m"), row("n3"), row("n4"))
    several = [found("n1", code) for code in ("GPU_LOST", "GPU_XID", "DISK_FULL", "PCIE_AER_ERRORS")]
    assert text(nodes, (*several, found("n2\n\x1b[31m", "DISK_FULL"), found("n3", "DISK_FULL"))) == (
        "4 of 4 nodes fail the health checks: DISK_FULL on n2 [31m and n3; something without a code on n4; "
        f"GPU_LOST, GPU_XID, DISK_FULL and 1 more on n1. {HOW} DISK_FULL"
    )
    assert text((row("n4"),), ()).endswith("mended: laggard healthcheck there says what is wrong")


def test_of_thousands_of_nodes_one_line_tells() -> None:
    names = [f"gpu-{number:05d}" for number in range(8000)]
    kinds = ("GPU_LOST", "GPU_XID", "DISK_FULL", "RDMA_PORT_DOWN", "NVLINK_DOWN")
    findings = [found(name, kinds[place % 7 % 5]) for place, name in enumerate(names)]
    told = text([row(name) for name in names], findings)
    most = "GPU_LOST on gpu-00000, gpu-00005, gpu-00007, gpu-00012 and 2282 more"
    assert len(told) < 400 and told.startswith(f"8000 of 8000 nodes fail the health checks: {most}; ")
    assert "; other findings on 2286 nodes. " in told


def test_none_is_told_of_where_none_fails() -> None:
    assert failing_note((row("n1", "ok"), row("n2", "unknown")), (found("n1", "GPU_LOST"),)) is None


@pytest.mark.parametrize(("running", "told"), [(True, False), (False, True)])
def test_it_is_told_where_no_job_runs_and_to_those_who_see_all(running: bool, told: bool) -> None:
    timings = timings_of(4)
    job = JobSnapshot(JobKey(1000, "nightly"), running, timings, locate(timings))
    idle = ClusterSnapshot(nodes=(row("n7"),), findings=(found("n7", "GPU_LOST"),))
    location = dataclasses.replace(idle, jobs=(job,)).location(None)
    assert ("nodes_failing" in [note.kind for note in location.notes]) is told and location.verdict is Verdict.OK
    assert "nodes_failing" not in [note.kind for note in dataclasses.replace(idle, only_of="ada").location(None).notes]
    answer = idle.location("nightly")
    assert answer.verdict is Verdict.UNKNOWN and sentence(answer).startswith("Cannot tell: 1 agent answers, but no")
    assert details(answer)[0].startswith("1 of 1 node fails the health checks: GPU_LOST on n7. Keep jobs off it")
