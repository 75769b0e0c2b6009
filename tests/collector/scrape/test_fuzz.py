"""Agents' documents that are nearly right: each is refused with a reason, or judged and shown, and another user's job
keeps its verdict."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collectors import answer_of
from support.mutated import mutated

from laggard.collector.agent_state import AgentState, compare_nodes
from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.jobs.snapshot import ClusterSnapshot, build_snapshot
from laggard.collector.jobs.unseen import RasAnswer, launched_jobs
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.collective_rounds import LookedRank
from laggard.collector.scrape.validation import validate_collectives, validate_ranks_answer, validate_report
from laggard.collector.settings import CollectorSettings
from laggard.collector.targets import parse_target
from laggard.collector.web.app import make_app
from laggard.locate.verdict import locate
from laggard.model import JobKey
from laggard.recording.writer import JobRecording
from laggard.wire import WireError, encode
from laggard.wire.digest import Digest
from laggard.wire.nodes import NodeFinding

PATHS = ("/", "/metrics") + tuple(
    f"/api/v1/{name}"
    for name in (
        "nodes", "findings", "drains?node=n0", "rings", "location", "summary", "ranks?measure=waited",
        "ranks?order=host", "ranks?order=position", "timeline?ranks=0,1,2", "targets", "incidents", "recommendation"
    )
)  # fmt: skip
LANE = {"op": "all_reduce", "group": "dp:0-3", "entered": 9, "done": 8}
BEAT = {
    "age_seconds": 0.5,
    "interval_seconds": 1.0,
    "flight_recorder": "on",
    "lanes": [LANE, LANE | {"op": "send", "peer": 1}],
    "groups": [{"name": "#0", "enqueued": 9, "started": 9, "completed": 8, "seconds": 1.0}],
    "groups_age_seconds": 0.1,
}
FLIGHT = {"op": "all_reduce", "group": "dp:0-3", "seq": 9, "seconds": 200.0}
FACTS = {
    "script": "train.py", "started": 1.7e9, "groups": {"dp:0-3": [0, 4, 1]}, "unseen_waits": False,
    "flight_recorder": "on"
}  # fmt: skip
CPU_WAIT = {
    "seconds": 5.0, "running_seconds": 4.0, "queued_seconds": 1.0, "throttled_seconds": 0.5, "stolen_seconds": 0.1,
    "neighbours": [{"pid": 9, "owner": 0, "seconds": 1.0, "command": "stress"}]
}  # fmt: skip
END = {"at_seconds": 1.7e9, "uncertain_seconds": 1.0, "signal": "SIGKILL", "cause": "out_of_memory", "kernel": "killed"}
RAS_RANK = {"rank": 2, "host": "10.0.0.1", "pid": 7, "gpu": 0, "launches": {"AllReduce": 8}, "process": "stopped"}
RAS_COMMUNICATOR = {
    "id": "0x1", "size": 4, "answered": 3, "launches": {"AllReduce": 9}, "at_front": 2, "unchanged_seconds": 200.0,
    "readings": 30, "ranks": [RAS_RANK, RAS_RANK | {"rank": 3, "missing": True, "dead": True, "launches": {}}]
}  # fmt: skip
RAS_JOB = {
    "job_id": "nccl-1", "owner": 1000, "nccl_version": "2.30.7", "age_seconds": 4.0, "local_hosts": ["10.0.0.1"],
    "communicators": [RAS_COMMUNICATOR]
}  # fmt: skip
PAIRS = {"nodes": ["n0", "n1"], "size_bytes": 1 << 20, "pairs": [[0, 1, 1e9]], "slow_nodes": [], "slow_links": [[0, 1]]}
REPORT_FACTS = {
    "identity": {"product": "DGX H100", "gpu_models": ["H100"], "kernel_release": "6.1"},
    "ring": {"age_seconds": 60.0, "nodes": 2, "pairs": PAIRS},
}
TRAFFIC = {
    "seconds": 30.0, "tcp_peer_bytes": 9, "tcp_other_bytes": 9, "rdma_bytes": None, "collective_bytes": 9,
    "peers": ["10.0.0.2"], "job_id": "job-1", "owner": 1000
}  # fmt: skip


def ranks_tree(make: Any) -> Any:
    """Two of four ranks of a job, all fields in use: one runs, the other died; and a job of which NCCL RAS tells."""
    tree = json.loads(encode(make.packed_node("n0", [0, 1], slow=0)))
    running, died = tree["ranks"]
    running |= {"in_flight": FLIGHT, "beat": BEAT, "facts": FACTS, "cpu_wait": CPU_WAIT}
    died |= {"state": "died", "end": END, "facts": FACTS}
    findings = json.loads(encode(make.report("n0", ["TCP_FALLBACK"])))["findings"]
    ras = {"state": "asked", "jobs": [RAS_JOB]}
    return tree | {"findings": findings, "ras": ras, "traffic": [TRAFFIC], "now": 1.7e9}


def report_tree(make: Any) -> Any:
    return json.loads(encode(make.report("n0", ["GPU_THROTTLED"]))) | {"facts": REPORT_FACTS}


def accepted(validate: Any, tree: Any) -> Any:
    """The document; None where it is refused, which takes a reason."""
    try:
        return validate(json.dumps(tree).encode())
    except WireError as error:
        assert str(error)
        return None


@dataclasses.dataclass
class Source:
    """What the web handlers read from, with one snapshot."""

    snapshot: ClusterSnapshot
    incidents: IncidentHistory

    def look_at(self, node: str) -> None:
        """A gate waits for the node's next report: there is none."""

    async def refresh(self) -> bool:
        return True

    def looked_at(self, key: JobKey, ranks: Sequence[int]) -> Mapping[int, LookedRank]:
        return {}

    def recording(self, name: str | None) -> JobRecording | None:
        return None

    async def digest(self, name: str | None, run: str) -> Digest | None:
        return None


class Round:
    """A round of scrapes as ScrapeLoop has it, without sockets: n0 gives the documents of the test, n1 sound ones."""

    def __init__(self, make: Any) -> None:
        self.windows = JobWindows()
        self.agents = [AgentState(parse_target(name)) for name in ("n0", "n1")]
        ours = make.node("n1", [2, 3], slow=0)
        others = make.node("n1", range(4), slow=2, job_id="job-2", owner=1001)
        self.sound = answer_of(make.ranks_document("n1", [*ours.ranks, *others.ranks]))
        self.sound_report = make.report("n1")
        self.incidents = IncidentHistory(HistorySettings("", 0, 0.0, 0.0, True))

    def snapshot(self, ranks: Any, report: Any, now: float) -> ClusterSnapshot:
        for agent, answer, checked in zip(self.agents, (ranks, self.sound), (report, self.sound_report), strict=True):
            if answer is not None:
                agent.update_ranks(answer, self.windows, now, now)
            agent.update_report(checked, now, 600.0)
        compared = compare_nodes(self.agents)
        findings = tuple(
            NodeFinding(agent.url, agent.name, finding)
            for agent in self.agents
            for finding in (*(agent.report.findings if agent.report else ()), *agent.job_findings)
        )
        cluster = ClusterSnapshot(
            nodes=tuple(agent.row(now) for agent in self.agents),
            findings=(*findings, *compared.findings),
            fleet_notes=compared.notes,
            rounds=1,
            scraped_at=now,
            round_seconds=0.1,
        )
        launched = launched_jobs(RasAnswer(agent.name, agent.ras, 0.0) for agent in self.agents if agent.ras)
        return build_snapshot(self.windows, cluster, locate, launched)


async def _ask_everything(snapshot: ClusterSnapshot, incidents: IncidentHistory) -> None:
    incidents.observe(snapshot.jobs)
    app: Any = make_app(Source(snapshot, incidents), CollectorSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for job in ("", *(str(job.key) for job in snapshot.jobs)):
            for path in PATHS:
                answer = await client.get(path, params={"job": job} if job and "?" not in path else None)
                assert answer.status_code == 200, (path, answer.text)
                if path.startswith("/api"):
                    answer.json()


@pytest.mark.slow
@settings(max_examples=30, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_what_is_nearly_right_is_refused_or_judged_and_shown(make: Any, data: st.DataObject) -> None:
    round_ = Round(make)
    before = round_.snapshot(validate_ranks_answer(json.dumps(ranks_tree(make)).encode()), None, 1.0)
    ranks = accepted(validate_ranks_answer, data.draw(mutated(ranks_tree(make)), "ranks"))
    report = accepted(validate_report, data.draw(mutated(report_tree(make)), "report"))
    after = round_.snapshot(ranks, report, 2.0)
    assert not [job.location for job in after.jobs if any(note.kind == "defect" for note in job.location.notes)]
    assert before.location("1001:job-2").culprits == after.location("1001:job-2").culprits != ()
    asyncio.run(_ask_everything(after, round_.incidents))


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_collectives_that_are_nearly_right_are_refused_with_a_reason_or_possible(data: st.DataObject) -> None:
    ranks = [{"rank": rank, "lanes": [["all_reduce", "dp", "dp:0-1", -1]], "rows": [[5, 0, 7, 1.0, 2.0, 0.5, 64]] * 2}
             for rank in (0, 1)]  # fmt: skip
    tree = {"node": "n0", "owner": 1000, "job_id": "job-1", "ranks": ranks, "schema": "laggard.collectives/1"}
    found = accepted(lambda body: validate_collectives(body, 1000, "job-1", (0, 1)), data.draw(mutated(tree)))
    if found is not None:
        assert {each.rank for each in found.ranks} <= {0, 1}
        assert all(
            0 <= row.lane < len(each.lanes) and row.start <= row.end for each in found.ranks for row in each.rows
        )
