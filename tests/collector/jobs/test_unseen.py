"""What is noted of a job beside its verdict: that hooks do not see it, and which of its nodes fail."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs
from support.collectors import ingest, rank_row, ranks_document, step_row
from support.timings import job as timings_of

from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot, build_snapshot
from laggard.collector.jobs.unseen import UnseenOn
from laggard.collector.jobs.window import JobWindows
from laggard.collector.node_findings import failing_note
from laggard.locate.describe import details, sentence
from laggard.locate.verdict import locate
from laggard.model import Finding, Fix, JobKey, Severity, Verdict
from laggard.wire.nodes import NodeFinding, NodeRow
from laggard.wire.ranks import UnseenProcess

UP = NodeRow("u", "n0", "up", "", 0.0, "ok", (), ())


def unseen(kind: str = "unseen", job_id: str = "hidden", rank: int = 0, **changes: Any) -> UnseenOn:
    values: dict[str, Any] = dict(
        world_size=2, owner=1000, pid=7, running=True, script="train.py", why="torch RPC", at=1.0
    )
    return UnseenOn(UnseenProcess(kind, job_id, rank, **{**values, **changes}), "n0", "u")


def cluster(*found: UnseenOn, **states: str) -> ClusterSnapshot:
    """With a job of each name in `states`, in that state."""
    windows = JobWindows()
    for job_id, state in states.items():
        rows = [step_row(step) for step in range(30)]
        ranks = [rank_row(rank, 2, rows, job_id=job_id, node="n0") for rank in range(2)]
        ingest(windows, "u", ranks_document("n0", ranks), 1.0)
        if state != "running":
            ended = [rank_row(rank, 2, (), job_id=job_id, state=state) for rank in (0, 1)]
            ingest(windows, "u", ranks_document("n0", ended), 2.0)
    return build_snapshot(windows, ClusterSnapshot(nodes=(UP,), unseen=found), locate)


def test_a_job_of_which_nothing_is_seen_is_told() -> None:
    location = cluster(unseen(rank=0), unseen(rank=1)).location(None)
    assert (location.verdict, location.job_id, location.owner) == (Verdict.UNKNOWN, "hidden", 1000)
    assert sentence(location) == "Cannot tell: 2 processes (ranks 0-1) trained without being seen: torch RPC."


def test_it_comes_before_a_job_that_ended_and_after_one_that_runs() -> None:
    assert cluster(unseen(), old="finished").location(None).job_id == "hidden"
    assert cluster(unseen(), new="running").location(None).job_id == "new"
    assert cluster(unseen(), new="running").location("hidden").job_id == "hidden"
    assert cluster(unseen(running=False), old="finished").location(None).job_id == "old"


def test_a_job_with_ranks_has_a_note_on_the_others() -> None:
    location = cluster(unseen(job_id="new"), new="running").location("new")
    assert "1 process (rank 0) trained without being seen: torch RPC" in [note.text for note in location.notes]


def test_no_job_that_ended_answers_for_one_that_begins() -> None:
    snapshot = cluster(unseen("starting", "next", why=""), old="finished")
    location = snapshot.location(None)
    assert (location.verdict, [note.kind for note in location.notes]) == (Verdict.UNKNOWN, ["starting"])
    assert sentence(location) == (
        "Cannot tell: next on n0 has begun and made no step yet; "
        "the job that ended last is 1000:old: ask for it with --job."
    )
    assert snapshot.location("old").job_id == "old" and snapshot.job("old") is not None
    assert "has begun" in sentence(snapshot.location("next"))


def test_where_processes_stand_that_begin_is_told_of_all_the_fewest_first() -> None:
    lock, barrier = "wait (baton.py:9), called in build (ops.py:7)", "barrier (train.py:3)"
    stands = [
        unseen("starting", "next", rank, why=f"for {8 + rank} s in {lock if rank == 1 else barrier}")
        for rank in range(3)
    ]
    assert sentence(cluster(*stands).location(None)) == (
        "Cannot tell: next on n0 has begun and made no step yet; they stand still for 8 s or more: "
        f"rank 1 in {lock}; ranks 0 and 2 in {barrier}."
    )
    (one,) = cluster(unseen("starting", "next", why=f"for 8 s in {lock}")).location(None).notes
    assert one.text.endswith(f"; it stands still for 8 s or more: rank 0 in {lock}")
    launched = cluster(
        unseen("starting", "7f6462d2-b872-4cbf-ab84-cc6d8f6c1a2a", script="torchrun", why=""),
        *(
            it._replace(process=structs.replace(it.process, job_id="7f6462d2-b872-4cbf-ab84-cc6d8f6c1a2a"))
            for it in stands
        ),
    )
    assert sentence(launched.location(None)).startswith("Cannot tell: train.py on n0 has begun")
    two = cluster(unseen("starting", "other", why=f"for 9 s in {lock}"), *stands)
    assert sentence(two.location(None)).endswith(f"; other on n0: it stands still for 9 s or more: rank 0 in {lock}.")
    (odd,) = cluster(unseen("starting", "next", why="for ever")).location(None).notes
    assert odd.text.endswith("made no step yet")


@pytest.mark.parametrize(
    "found",
    [unseen("starting", "next", running=False), unseen("starting", "new")],
    ids=["it is gone", "its job has ranks that run"],
)
def test_what_no_longer_starts_changes_no_answer(found: UnseenOn) -> None:
    assert cluster(found, new="running").location(None).job_id == "new"
    assert (
        cluster(found._replace(process=unseen("starting", running=False).process), old="finished").job(None) is not None
    )


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
