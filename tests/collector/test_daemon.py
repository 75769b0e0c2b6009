"""The real collector process with fake agents: healthy, down, slow, garbage, hostile."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.ports import free_port

from laggard.cli import main
from laggard.collector.web.app import HEADERS
from laggard.collector.web.documents import HeatDocument, NodeFindingsDocument, SummaryDocument
from laggard.model import Location, Verdict
from laggard.recommend.advice.values import Recommendation, change_text, gain_text
from laggard.wire import decode
from laggard.wire.nodes import DrainsDocument, NodeRow, NodesDocument, RingsDocument
from laggard.wire.ranks import RasCommunicator, RasJob, RasRank, RasSource

pytestmark = pytest.mark.slow  # a collector for each test

Start = Callable[..., Any]
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def _collect(start_collector: Start, *targets: str, config: str | Path = "/dev/null") -> Any:
    flags = [word for target in targets for word in ("--target", target)]
    collector = start_collector(*flags, "--interval", "0.3", "--config", str(config))
    collector.wait_ready()
    return collector


def _nodes(collector: Any) -> dict[str, NodeRow]:
    return {row.url: row for row in decode(collector.get("/api/v1/nodes").content, NodesDocument).nodes}


def _location(collector: Any, **parameters: str) -> Location:
    return decode(collector.get("/api/v1/location", **parameters).content, Location)


def test_a_slow_rank_is_named_in_every_document(start_collector: Start, fake_agent: Start, make: Any) -> None:
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2), make.report("n0")),
        fake_agent(make.node("n1", [2, 3], slow=2), make.report("n1", ["GPU_THROTTLED"])),
    ]
    collector = _collect(start_collector, *(agent.address for agent in agents))
    location = _location(collector)
    assert location.verdict is Verdict.FAIL and location.culprits[0].ranks == (2,)
    assert location.culprits[0].node == "n1" and location.culprits[0].findings == ("GPU_THROTTLED",)
    summary = decode(collector.get("/api/v1/summary").content, SummaryDocument)
    assert summary.sentence.startswith("Rank 2 on n1 is slow in forward: ")
    assert escape(summary.sentence) in collector.get("/").text
    heat = decode(collector.get("/api/v1/ranks").content, HeatDocument)
    assert [row.first for row in heat.rows] == [0, 1, 2, 3] and len(heat.steps) == 60
    found = decode(collector.get("/api/v1/findings").content, NodeFindingsDocument).findings
    assert [(one.node, one.finding.code) for one in found] == [("n1", "GPU_THROTTLED")]
    advised = decode(collector.get("/api/v1/recommendation").content, Recommendation)
    assert advised.items[0].key == "rank 2 on n1" and not advised.blocked_by
    assert advised.items[0].gain.ratio == pytest.approx(
        1 / (1 - (location.culprits[0].recoverable_ratio or 0)), rel=0.2
    )
    rows = _nodes(collector)
    assert rows[agents[1].url].verdict == "fail" and rows[agents[1].url].ranks == (2, 3)
    metrics = collector.get("/metrics").text
    assert 'laggard_culprit{hostname="n1",job_id="job-1",kind="slow_compute",rank="2",user="1000"} 0.' in metrics
    assert f'laggard_target_up{{target="{agents[0].url}"}} 1.0' in metrics
    assert 'laggard_job_ranks{job_id="job-1",user="1000"} 4.0' in metrics
    assert 'laggard_job_slowdown_ratio{job_id="job-1",user="1000"} 1.' in metrics
    assert "laggard_collector_round_seconds 0." in metrics and "process_resident_memory_bytes " in metrics
    assert 'laggard_job_running{job_id="job-1",user="1000"} 1.0' in metrics
    recommended = (
        'laggard_job_recommendation{basis="measured",job_id="job-1",key="rank 2 on n1",target="host",user="1000"}'
    )
    assert f"{recommended} 1.0" in metrics
    gain = re.search(re.escape(recommended.replace("{", "_gain_ratio{", 1)) + " (1\\.[0-9]+)", metrics)
    assert gain is not None, "what it would gain if another node took the slow rank's place"
    targets = collector.get("/api/v1/targets").json()
    assert targets == [{"targets": [agent.address for agent in agents], "labels": {}}]


def test_what_to_change_stands_in_the_api_and_in_locate(
    start_collector: Start, fake_agent: Start, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2), make.report("n0")),
        fake_agent(make.node("n1", [2, 3], slow=2), make.report("n1", ["ACS_ENABLED"])),
    ]
    collector = _collect(start_collector, *(agent.address for agent in agents))
    advised = decode(collector.get("/api/v1/recommendation").content, Recommendation)
    (acs,) = [item for item in advised.items if "ACS_ENABLED" in item.evidence]
    assert acs.target == "pcie" and acs.repairs and "host.sh" in advised.files
    assert main(["locate", "--collector", collector.url]) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("Rank 2 on n1 is slow in forward: ") and lines[1].startswith("What to do: ")
    changes = [line for line in lines if line.startswith("What to change: ")]
    assert changes[0] == f"What to change: {change_text(acs)}. Gain: {gain_text(acs.gain)}."
    assert not any("rank 2" in change for change in changes), "what to do of the culprit is said already"
    assert any(f"laggard recommend --collector {collector.url}" in line for line in lines)


def test_failing_agents_are_named_and_the_others_go_on(start_collector: Start, fake_agent: Start, make: Any) -> None:
    healthy = fake_agent(make.node("n0", [0, 1], world_size=2), make.report("n0"))
    deep = b'{"node":"n","boot_id":"b","next":0,"ranks":[],"ignored":' + b"[" * 50_000
    failing = {
        f"http://127.0.0.1:{free_port()}": ("down", "no connection: connection refused"),
        fake_agent(b"<html>it works</html>").url: ("garbage", "not the JSON expected"),
        fake_agent(b'{"schema":"laggard.ranks/1"}').url: ("garbage", "missing required field"),
        fake_agent(make.node("n1", [0]), status=500).url: ("garbage", "HTTP 500"),
        fake_agent(deep).url: ("garbage", "not the JSON expected"),
        fake_agent(b"x" * (17 << 20)).url: ("garbage", "more than"),
        fake_agent(make.node("n2", [5], world_size=2)).url: ("garbage", "not a rank of 2"),
        fake_agent(make.node("n3", [0]), delay=60).url: ("slow", "no complete answer within 3 s"),
    }
    collector = _collect(start_collector, healthy.url, *failing)
    rows = _nodes(collector)
    for url, (state, reason) in failing.items():
        assert (rows[url].state, reason in rows[url].reason) == (state, True), rows[url]
        assert "\n" not in rows[url].reason and rows[url].verdict == "unknown"
    assert rows[healthy.url].state == "up" and rows[healthy.url].verdict == "ok"
    assert _location(collector).verdict is Verdict.OK
    assert f'laggard_target_up{{target="{next(iter(failing))}"}} 0.0' in collector.get("/metrics").text


def test_an_agent_without_a_report_is_up_and_unknown(start_collector: Start, fake_agent: Start, make: Any) -> None:
    none, garbage = fake_agent(make.node("n0", [0])), fake_agent(make.node("n1", [1]), b"{}")
    collector = _collect(start_collector, none.url, garbage.url)
    rows = _nodes(collector)
    assert (rows[none.url].state, rows[none.url].verdict) == ("up", "unknown")
    assert rows[none.url].reason == "no report: HTTP 404"
    assert rows[garbage.url].reason.startswith("no report: not the JSON expected")


def test_steps_are_asked_for_from_where_the_last_answer_ended(
    start_collector: Start, fake_agent: Start, make: Any
) -> None:
    def ranks(since: float) -> Any:
        rows = [make.step_row(step) for step in range(int(since), int(since) + 12)]
        return make.ranks_document("n0", [make.rank_row(0, 1, rows)], next=since + 10)  # two steps come twice

    agent = fake_agent(ranks, make.report("n0"))
    collector = _collect(start_collector, agent.url)
    collector.wait_until(lambda: any("since=30.0" in path for path in agent.requests))
    assert agent.requests[:2] == ["/api/v1/ranks", "/api/v1/ranks?since=0.0"], (
        "which steps are the last, it is asked first"
    )
    steps = decode(collector.get("/api/v1/ranks").content, HeatDocument).steps
    assert steps == list(range(len(steps))) and len(steps) >= 32


def test_a_job_of_silent_agents_has_no_verdict(start_collector: Start, fake_agent: Start, make: Any) -> None:
    first = fake_agent(make.node("n0", [0, 1], slow=2), make.report("n0"))
    second = fake_agent(make.node("n1", [2, 3], slow=2), make.report("n1"))
    collector = _collect(start_collector, first.url, second.url)
    assert _location(collector).verdict is Verdict.FAIL
    second.close()
    collector.wait_until(lambda: _nodes(collector)[second.url].state == "down")
    assert _location(collector).culprits  # the steps are still there
    assert any(note.kind == "agents_silent" and "n1" in note.text for note in _location(collector).notes)
    assert _nodes(collector)[second.url].last_seen_seconds is not None
    first.close()
    collector.wait_until(lambda: _location(collector).verdict is Verdict.UNKNOWN)
    assert "no agent of this job answers (2 of 2 silent)" in _location(collector).notes[0].text


def test_without_ranks_the_verdict_is_unknown_with_a_reason(
    start_collector: Start, fake_agent: Start, make: Any
) -> None:
    ports = [free_port(), free_port()]
    silent = _collect(start_collector, *(f"127.0.0.1:{port}" for port in ports))
    assert _location(silent).verdict is Verdict.UNKNOWN
    assert "Cannot tell: no agent answers (2 of 2 down)." in silent.get("/").text
    idle = _collect(start_collector, fake_agent(make.ranks_document("n0", []), make.report("n0")).url)
    assert _location(idle).notes[0].kind == "no_ranks" and "laggard run" in _location(idle).notes[0].text
    assert decode(idle.get("/api/v1/ranks").content, HeatDocument).rows == ()


def test_where_no_job_runs_locate_says_which_nodes_fail(
    start_collector: Start, fake_agent: Start, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ill = {"n0": ("GPU_LOST",), "n1": ("GPU_LOST", "DISK_FULL"), "n2": ()}
    agents = [fake_agent(make.ranks_document(node, []), make.report(node, codes)) for node, codes in ill.items()]
    collector = _collect(start_collector, *(agent.address for agent in agents))
    assert main(["locate", "--collector", collector.url]) == 2, "the verdict is on a job, and none runs"
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("Cannot tell: 3 agents answer, but no training process")
    assert lines[1].startswith("2 of 3 nodes fail the health checks: ") and "GPU_LOST on n0" in lines[1]
    assert main(["locate", "--collector", collector.url, "--format", "json"]) == 2
    assert "nodes_failing" in [note["kind"] for note in json.loads(capsys.readouterr().out)["notes"]]
    assert escape(lines[1]) in collector.get("/").text


def test_the_job_can_be_chosen(start_collector: Start, fake_agent: Start, make: Any) -> None:
    def moving(since: float) -> Any:
        rows = [make.step_row(step) for step in range(int(since), int(since) + 30)]
        return make.ranks_document("n1", [make.rank_row(rank, 2, rows, job_id="b") for rank in (0, 1)], next=since + 30)

    still = fake_agent(make.node("n0", [0, 1], slow=1, world_size=2, job_id="a"), make.report("n0"))
    collector = _collect(start_collector, still.url, fake_agent(moving, make.report("n1")).url)
    collector.wait_until(lambda: _location(collector).job_id == "b")
    assert _location(collector, job="a").culprits and _location(collector, job="1000:a").job_id == "a"
    missing = _location(collector, job="c")
    assert missing.verdict is Verdict.UNKNOWN and missing.notes[0].kind == "no_such_job"
    summary = decode(collector.get("/api/v1/summary").content, SummaryDocument)
    assert [line.key for line in summary.jobs] == ["1000:b", "1000:a"]


def test_two_users_jobs_of_one_name_are_two_jobs(start_collector: Start, fake_agent: Start, make: Any) -> None:
    """One is calm, the other, whose steps go on, has a slow rank."""

    def moving(since: float) -> Any:
        rows = {rank: [make.step_row(step, 0.1 * rank, 0.1) for step in range(60)] for rank in (0, 1)}
        ranks = [make.rank_row(rank, 2, rows[rank], job_id="vic", owner=2000) for rank in (0, 1)]
        return make.ranks_document("n1", ranks)

    calm = fake_agent(make.node("n0", [0, 1], world_size=2, job_id="vic", owner=0), make.report("n0"))
    collector = _collect(start_collector, calm.url, fake_agent(moving, make.report("n1")).url)
    for _ in range(5):
        assert _location(collector, job="0:vic").verdict is Verdict.OK
        slow = _location(collector, job="2000:vic")
        assert (slow.verdict, slow.owner) == (Verdict.FAIL, 2000)
    for path in ("location", "recording", "ranks"):
        refused = collector.get(f"/api/v1/{path}", job="vic")
        assert refused.status_code == 409 and "0:vic" in refused.text and "2000:vic" in refused.text
    summary = decode(collector.get("/api/v1/summary", job="vic").content, SummaryDocument)
    assert summary.job is None and "2 users have a job named vic" in summary.sentence
    metrics = collector.get("/metrics").text
    for user in (0, 2000):
        assert f'laggard_job_ranks{{job_id="vic",user="{user}"}} 2.0' in metrics

    command = [sys.executable, "-m", "laggard", "locate", "--collector", collector.url, "--job"]
    located = subprocess.run([*command, "vic"], capture_output=True, text=True, timeout=300)
    assert (located.returncode, located.stdout, located.stderr.count("\n")) == (64, "", 1)
    assert "0:vic" in located.stderr and "2000:vic" in located.stderr
    located = subprocess.run([*command, "root:vic"], capture_output=True, text=True, timeout=300)
    assert located.returncode == 0 and "Job vic of user root" in located.stdout, located


def test_a_flooding_user_and_a_lying_agent_cost_themselves_alone(
    start_collector: Start, fake_agent: Start, make: Any, tmp_path: Path
) -> None:
    config = tmp_path / "collector.yaml"
    config.write_text("max_jobs: 100\n")

    def flood(agent: int) -> Any:
        return make.ranks_document(f"f{agent}", [make.rank_row(0, job_id=f"{agent}-{i}", owner=9) for i in range(64)])

    lies = make.ranks_document("liar", [make.rank_row(0, job_id=f"lie{i}", owner=i) for i in range(1000)])
    agents = [fake_agent(document) for document in (flood(0), flood(1), lies)]
    begun = threading.Event()

    def late(since: float) -> Any:
        ranks = make.node("n0", [0, 1], slow=1, world_size=2, job_id="real") if begun.is_set() else None
        return ranks or make.ranks_document("n0", [])

    agents.append(fake_agent(late, make.report("n0")))
    collector = _collect(start_collector, *(agent.url for agent in agents), config=config)
    begun.set()
    collector.wait_until(lambda: _location(collector, job="1000:real").verdict is Verdict.FAIL)
    assert _location(collector, job="1000:real").culprits[0].ranks == (1,)
    summary = decode(collector.get("/api/v1/summary", job="1000:real").content, SummaryDocument)
    assert summary.sentence.startswith("Rank 1 on n0 is slow") and "are not watched" in summary.sentence
    assert "laggard_collector_jobs_not_held 1" in collector.get("/metrics").text
    unseen = _location(collector, job="9:1-63")
    assert unseen.notes[0].kind == "job_not_held" and "not watched" in unseen.notes[0].text


def test_hostile_names_are_escaped(start_collector: Start, fake_agent: Start, make: Any) -> None:
    agent = fake_agent(
        make.node(HOSTILE, [0, 1], slow=1, world_size=2, job_id=HOSTILE), make.report(HOSTILE, [HOSTILE])
    )
    collector = _collect(start_collector, agent.url)
    page = collector.get("/").text
    assert escape(HOSTILE) in page and "<script>alert" not in page and "<img src=x" not in page
    assert collector.get("/metrics").text.count("\n") > 10
    assert _location(collector).job_id == HOSTILE
    for path in ("/api/v1/location", "/api/v1/nodes", "/api/v1/findings", "/api/v1/summary"):
        assert collector.get(path).headers["content-type"] == "application/json"


def test_it_only_reads(start_collector: Start, fake_agent: Start, make: Any) -> None:
    collector = _collect(start_collector, fake_agent(make.ranks_document("n0", [])).url)
    paths = ("/", "/metrics", "/-/healthy", "/api/v1/nodes", "/api/v1/location", "/page/page.js")
    for path in paths:
        assert collector.client.head(path).status_code == 200
        assert collector.client.head(path).content == b""
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert collector.client.request(method, path).status_code == 405
    for path in (*paths, "/no/such/page"):
        headers = collector.get(path).headers
        own = {"Cache-Control": "no-cache"} if path.startswith("/page/") else {}
        assert {name: headers[name] for name, _ in HEADERS} == {**dict(HEADERS), **own}
        assert "server" not in headers
    senseless = {"Accept": "application/openmetrics-text;version=x.y;q=z;;;="}
    assert collector.client.get("/metrics", headers=senseless).status_code == 200
    for path in ("/page/..%2fapp.py", "/page/../app.py", "/page/index.html", "/docs", "/openapi.json"):
        assert collector.get(path).status_code == 404
    for parameters in ({"rows": "0"}, {"rows": "x"}, {"rows": "9" * 20}, {"measure": "speed"}):
        assert collector.get("/api/v1/ranks", **parameters).status_code == 400


def test_ready_is_after_the_first_round(start_collector: Start, fake_agent: Start, make: Any) -> None:
    asked_enough = threading.Event()

    def answer(since: float) -> Any:
        asked_enough.wait(300)
        return make.ranks_document("n0", [])

    collector = start_collector("--target", fake_agent(answer).url)
    assert collector.get("/-/healthy").status_code == 200
    answer = collector.get("/-/ready")
    assert answer.status_code == 503 and "not ready" in answer.text
    assert "Cannot tell: the agents have not been asked yet." in collector.get("/").text
    asked_enough.set()
    collector.wait_ready()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_once_with_exit_status_0(start_collector: Start, fake_agent: Start, make: Any, number: int) -> None:
    slow = fake_agent(make.ranks_document("n0", []), delay=300)
    collector = start_collector("--target", slow.url)
    assert collector.get("/-/healthy").status_code == 200
    assert collector.stop(number) == 0  # which kills it after a minute


def test_the_first_line_names_the_listen_address(start_collector: Start) -> None:
    collector = start_collector("--target", "127.0.0.1:9")
    assert "listening on http://127.0.0.1:" in collector.first_line and ":0" not in collector.first_line.split("//")[1]


def test_wrong_usage_is_one_line_and_64(
    start_collector: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = start_collector("--target", "127.0.0.1:9")
    unknown_key = tmp_path / "bad.yaml"
    unknown_key.write_text("target: n1\n")
    for arguments, words in (
        (("--web.listen-address", busy.url.removeprefix("http://")), "in use"),
        (("--web.listen-address", "nowhere"), "write HOST:PORT"),
        (("--target", "http://"), "write HOST:PORT"),
        (("--interval", "0"), "interval_seconds"),
        (("--config", str(tmp_path / "none.yaml")), "cannot read"),
        (("--config", str(unknown_key)), "unknown key"),
    ):
        status, (out, err) = main(["collector", *arguments]), capsys.readouterr()
        assert (status, out, err.count("\n")) == (64, "", 1) and words in err, err


def test_a_configuration_file_is_enough(start_collector: Start, fake_agent: Start, make: Any, tmp_path: Path) -> None:
    agent = fake_agent(make.node("n0", [0, 1], world_size=2), make.report("n0"))
    file = tmp_path / "collector.yaml"
    file.write_text(json.dumps({"targets": [agent.address], "interval_seconds": 0.3}))
    collector = start_collector("--config", str(file))
    collector.wait_ready()
    assert _location(collector).verdict is Verdict.OK


def test_an_outlier_is_in_every_document(start_collector: Start, fake_agent: Start, make: Any, tmp_path: Path) -> None:
    """Four nodes, the last with another kernel; its rank is slow. The finding joins the verdict."""

    def facts(number: int) -> dict[str, Any]:
        release = "6.8.0-rc1" if number == 3 else "5.15.0"
        return {"identity": {"product": "DGX H100", "gpu_models": ["H100"], "kernel_release": release}}

    def report(number: int) -> Any:
        return structs.replace(make.report(f"n{number}"), facts=facts(number))

    agents = [fake_agent(make.node(f"n{i}", [i], slow=3), report(i)) for i in range(4)]
    collector = _collect(start_collector, *(agent.address for agent in agents))
    document = decode(collector.get("/api/v1/findings").content, NodeFindingsDocument)
    assert [(it.node, it.finding.code, it.finding.device) for it in document.findings] == [
        ("n3", "FLEET_OUTLIER", "kernel release")
    ]
    assert {row.node: row.findings for row in _nodes(collector).values()}["n3"] == ("FLEET_OUTLIER",)
    line = 'laggard_fleet_finding{code="FLEET_OUTLIER",device="kernel release",hostname="n3",severity="warning"} 1.0'
    assert line in collector.get("/metrics").text
    summary = decode(collector.get("/api/v1/summary").content, SummaryDocument)
    assert summary.fleet == ("n3: kernel release is 6.8.0-rc1; 3 of 4 nodes of the same hardware have 5.15.0",)
    command = [sys.executable, "-m", "laggard", "locate", "--collector", collector.url]
    located = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert located.returncode == 1 and "FLEET_OUTLIER" in located.stdout, located.stdout
    agents[3].close()  # its old report is not compared, and has no finding
    collector.wait_until(lambda: not decode(collector.get("/api/v1/findings").content, NodeFindingsDocument).findings)


def test_a_gate_can_ask_before_it_drains(start_collector: Start, fake_agent: Start, make: Any, tmp_path: Path) -> None:
    config = tmp_path / "collector.yaml"
    config.write_text("max_drain_ratio: 0.5\n")
    agents = [fake_agent(make.ranks_document(f"n{i}", []), make.report(f"n{i}", ["X"] * (i < 2))) for i in range(4)]
    flags = [word for agent in agents for word in ("--target", agent.address)]
    collector = start_collector("--config", str(config), "--interval", "0.3", *flags)
    collector.wait_ready()
    answer = decode(collector.get("/api/v1/drains").content, DrainsDocument)
    assert (answer.may_drain, answer.failing, answer.answering, answer.cap) == (False, 2, 4, 2)
    assert decode(collector.get("/api/v1/drains", node="n1").content, DrainsDocument).may_drain
    assert collector.client.post("/api/v1/drains").status_code == 405
    assert "laggard_fleet_failing_nodes 2.0" in collector.get("/metrics").text


def test_a_hang_of_a_job_without_hooks_is_in_every_document(
    start_collector: Start, fake_agent: Start, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = RasRank(2, "10.0.0.1", 77, 0, {"AllReduce": 8}, unchanged_seconds=200.0, readings=21)
    stuck = RasCommunicator("0xabc/0x1:0x2", 4, 4, {"AllReduce": 9}, 3, 200.0, 21, (rank,))
    job = RasJob("nccl-abc", 1000, "2.30.7", 4.0, ("10.0.0.1",), (stuck,))
    told = structs.replace(make.ranks_document("n1", []), ras=RasSource("asked", jobs=(job,)))
    healthy = make.node("n0", [0, 1], world_size=2)
    collector = _collect(start_collector, fake_agent(told).address, fake_agent(healthy, make.report("n0")).address)
    location = _location(collector, job="nccl-abc")
    (culprit,) = location.culprits
    assert (culprit.kind, culprit.ranks, culprit.node) == ("hung", (2,), "n1")
    assert (location.verdict, location.owner) == (Verdict.FAIL, 1000)
    series = 'laggard_culprit{hostname="n1",job_id="nccl-abc",kind="hung",rank="2",user="1000"}'
    assert series in collector.get("/metrics").text
    summary = decode(collector.get("/api/v1/summary").content, SummaryDocument)
    assert {line.job_id for line in summary.jobs} == {"nccl-abc", "job-1"}
    assert decode(collector.get("/api/v1/ranks", job="nccl-abc").content, HeatDocument).rows == ()
    assert main(["locate", "--collector", collector.url, "--job", "nccl-abc"]) == 1
    assert capsys.readouterr().out.startswith("Rank 2 on n1 is hung: the others wait for it.")


def test_a_job_with_rank_files_is_not_judged_by_launch_counts(
    start_collector: Start, fake_agent: Start, make: Any
) -> None:
    rank = RasRank(2, "10.0.0.1", 77, 0, {"AllReduce": 8}, unchanged_seconds=200.0, readings=21)
    stuck = RasCommunicator("0xabc/0x1:0x2", 4, 4, {"AllReduce": 9}, 3, 200.0, 21, (rank,))
    job = RasJob("job-1", 1000, "2.30.7", 4.0, ("10.0.0.1",), (stuck,))
    told = structs.replace(make.node("n0", [0, 1], world_size=2), ras=RasSource("asked", jobs=(job,)))
    collector = _collect(start_collector, fake_agent(told, make.report("n0")).address)
    location = _location(collector)
    assert (location.ranks_seen, location.culprits) == (2, ())


def test_the_nodes_that_are_due_for_a_ring(start_collector: Start, fake_agent: Start, make: Any) -> None:
    ages = (10.0, 200_000.0, "no number", 90_000.0)
    reports = [
        structs.replace(make.report(f"n{i}"), facts={"ring": {"age_seconds": age}}) for i, age in enumerate(ages)
    ]
    agents = [fake_agent(make.ranks_document(f"n{i}", []), report) for i, report in enumerate(reports)]
    collector = _collect(start_collector, *(agent.url for agent in agents))
    plan = decode(collector.get("/api/v1/rings", hours=24, nodes=3).content, RingsDocument)
    assert (plan.rings, plan.due, plan.measured, plan.busy) == ((("n2", "n1", "n3"),), 3, 1, 0)
    assert decode(collector.get("/api/v1/rings", hours=100).content, RingsDocument).rings == (("n2", "n1", "n3"),)
    for name, wrong in (("nodes", "2"), ("nodes", "3.5"), ("nodes", "99"), ("hours", "0"), ("hours", "x")):
        assert collector.get("/api/v1/rings", **{name: wrong}).status_code == 400
