"""Rounds of scrapes and what the API and the commands tell of them, in this process: agents are threads, and no daemon
is started."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from msgspec import structs
from support.ports import free_port

from laggard.cli import main
from laggard.collector.discovery import Discovery
from laggard.collector.scrape_loop import ScrapeLoop
from laggard.collector.settings import CollectorSettings
from laggard.collector.targets import parse_targets
from laggard.collector.web.app import make_app
from laggard.collector.web.documents import HeatDocument, NodeFindingsDocument, SummaryDocument
from laggard.locate.verdict import locate
from laggard.model import Finding, Fix, Location, Severity, Verdict
from laggard.recommend.advice.values import Recommendation, change_text, gain_text
from laggard.wire import decode, encode
from laggard.wire.exclusion import ConfirmAsk, Confirmation
from laggard.wire.nodes import DrainsDocument, NodeRow, NodesDocument, RingsDocument
from laggard.wire.ranks import RasCommunicator, RasJob, RasRank, RasSource
from laggard.wire.signing import CONFIRM, signed

TOKEN = "a secret of operators"
Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))


@contextlib.asynccontextmanager
async def watched(targets: Sequence[str], **changes: Any) -> AsyncIterator[tuple[ScrapeLoop, httpx.AsyncClient]]:
    """After the first round, with a client of the collector's web part. `changes`: to its settings."""
    values = {"interval_seconds": 0.1, "report_interval_seconds": 0.1, "incidents_database": "", **changes}
    settings = CollectorSettings(**values)
    loop = ScrapeLoop(Discovery(parse_targets(targets)), settings, locate)
    rounds = asyncio.create_task(loop.run())
    try:
        assert await loop.refresh()
        async with over_http(loop, settings) as client:
            yield loop, client
    finally:
        rounds.cancel()
        await asyncio.gather(rounds, return_exceptions=True)


@contextlib.asynccontextmanager
async def over_http(loop: ScrapeLoop, settings: CollectorSettings) -> AsyncIterator[httpx.AsyncClient]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(make_app(loop, settings), log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            await serving


async def laggard(client: httpx.AsyncClient, *words: str) -> int:
    """The exit status of a command that asks this collector."""
    return await asyncio.to_thread(main, [*words, "--collector", str(client.base_url)])


async def location_of(client: httpx.AsyncClient, **parameters: str) -> Location:
    return decode((await client.get("/api/v1/location", params=parameters)).content, Location)


async def rows_of(client: httpx.AsyncClient) -> dict[str, NodeRow]:
    """By URL."""
    return {row.url: row for row in decode((await client.get("/api/v1/nodes")).content, NodesDocument).nodes}


async def next_round(loop: ScrapeLoop) -> None:
    before = loop.snapshot.rounds
    while loop.snapshot.rounds == before:
        await asyncio.sleep(0.01)


async def test_a_slow_rank_is_named_in_every_document(fake_agent: Start, make: Any) -> None:
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2), make.report("n0")),
        fake_agent(make.node("n1", [2, 3], slow=2), make.report("n1", ["GPU_THROTTLED"])),
    ]
    async with watched([agent.url for agent in agents]) as (loop, client):
        location = decode((await client.get("/api/v1/location")).content, Location)
        (culprit,) = location.culprits
        assert location.verdict is Verdict.FAIL and (culprit.ranks, culprit.node) == ((2,), "n1")
        assert culprit.findings == ("GPU_THROTTLED",)
        summary = decode((await client.get("/api/v1/summary")).content, SummaryDocument)
        assert summary.sentence.startswith("Rank 2 on n1 is slow in forward: ")
        assert escape(summary.sentence) in (await client.get("/")).text
        found = decode((await client.get("/api/v1/findings")).content, NodeFindingsDocument).findings
        assert [(one.node, one.finding.code) for one in found] == [("n1", "GPU_THROTTLED")]
        advised = decode((await client.get("/api/v1/recommendation")).content, Recommendation)
        assert advised.items[0].key == "rank 2 on n1" and not advised.blocked_by
        heat = decode((await client.get("/api/v1/ranks")).content, HeatDocument)
        assert [row.first for row in heat.rows] == [0, 1, 2, 3] and len(heat.steps) == 60
        nodes = await rows_of(client)
        assert [nodes[agent.url].verdict for agent in agents] == ["ok", "fail"] and nodes[agents[1].url].ranks == (2, 3)
        metrics = (await client.get("/metrics")).text
        assert 'laggard_culprit{hostname="n1",job_id="job-1",kind="slow_compute",rank="2",user="1000"} 0.' in metrics
        assert f'laggard_target_up{{target="{agents[0].url}"}} 1.0' in metrics
        for name, value in (("ranks", "4.0"), ("running", "1.0"), ("slowdown_ratio", "1.")):
            assert f'laggard_job_{name}{{job_id="job-1",user="1000"}} {value}' in metrics
        labels = '{basis="measured",job_id="job-1",key="rank 2 on n1",target="host",user="1000"}'
        assert f"laggard_job_recommendation{labels} 1.0" in metrics
        assert re.search(re.escape(f"laggard_job_recommendation_gain_ratio{labels}") + r" 1\.[0-9]+", metrics)
        assert "\nlaggard_collector_round_seconds " in metrics and "\nprocess_resident_memory_bytes " in metrics
        targets = (await client.get("/api/v1/targets")).json()
        assert targets == [{"targets": [agent.address for agent in agents], "labels": {}}]
        recording = loop.recording("job-1")
        assert recording is not None
        assert [(rank, len(table)) for rank, table in sorted(recording.steps.items())] == [
            (rank, 60) for rank in range(4)
        ]


async def test_failing_agents_are_named_and_the_others_are_judged(fake_agent: Start, make: Any) -> None:
    healthy = fake_agent(make.node("n0", [0, 1], world_size=2), make.report("n0"))
    failing = {
        f"http://127.0.0.1:{free_port()}": ("down", "no connection: connection refused"),
        fake_agent(b"<html>it works</html>").url: ("garbage", "not the JSON expected"),
        fake_agent(b'{"schema":"laggard.ranks/1"}').url: ("garbage", "missing required field"),
        fake_agent(b'{"node":"n","boot_id":"b","next":0,"ranks":[],"ignored":' + b"[" * 50_000).url: (
            "garbage",
            "not the JSON expected",
        ),
        fake_agent(b"x" * (17 << 20)).url: ("garbage", "more than"),
        fake_agent(make.node("n1", [0]), status=500).url: ("garbage", "HTTP 500"),
        fake_agent(make.node("n2", [5], world_size=2)).url: ("garbage", "not a rank of 2"),
    }
    none, garbage = fake_agent(make.ranks_document("n4", [])), fake_agent(make.ranks_document("n5", []), b"{}")
    async with watched([healthy.url, *failing, none.url, garbage.url]) as (loop, client):
        nodes = await rows_of(client)
        for url, (state, reason) in failing.items():
            assert (nodes[url].state, reason in nodes[url].reason) == (state, True), nodes[url]
            assert "\n" not in nodes[url].reason and nodes[url].verdict == "unknown"
        assert (nodes[healthy.url].state, nodes[healthy.url].verdict) == ("up", "ok")
        assert (nodes[none.url].state, nodes[none.url].verdict) == ("up", "unknown")
        assert nodes[none.url].reason == "no report: HTTP 404"
        assert nodes[garbage.url].reason.startswith("no report: not the JSON expected")
        assert (await location_of(client)).verdict is Verdict.OK
        assert not loop.why_not_ready and (await client.get("/-/ready")).status_code == 200
        assert f'laggard_target_up{{target="{next(iter(failing))}"}} 0.0' in (await client.get("/metrics")).text


async def test_a_later_round_asks_for_what_is_new_and_a_job_whose_agents_fell_silent_has_no_verdict(
    fake_agent: Start, make: Any
) -> None:
    rows = [make.step_row(step) for step in range(60)]

    def ranks(since: float) -> Any:
        told = [make.rank_row(rank, 2, [row for row in rows if row.end > since]) for rank in (0, 1)]
        return make.ranks_document("n0", told, next=rows[-1].end)

    agent = fake_agent(ranks, make.report("n0"))
    async with watched([agent.url]) as (loop, client):
        await next_round(loop)
        rows.extend(make.step_row(step) for step in range(60, 80))
        for _ in range(2):  # one may be under way
            await next_round(loop)
        asked = [path for path in agent.requests if path.startswith("/api/v1/ranks") and "since=115" in path]
        assert asked, f"from the end of step 59 on: {agent.requests}"
        heat = decode((await client.get("/api/v1/ranks")).content, HeatDocument)
        assert heat.steps[-1] == 79
        agent.status = 500
        for _ in range(2):
            await next_round(loop)
        location = decode((await client.get("/api/v1/location")).content, Location)
        assert location.verdict is Verdict.UNKNOWN and not location.culprits


async def test_what_operators_say_is_kept_for_who_has_the_token(fake_agent: Start, make: Any, tmp_path: Path) -> None:
    found = {"n1": [], "n2": ["GPU_LOST"]}
    agents = [fake_agent(make.ranks_document(node, []), make.report(node, codes)) for node, codes in found.items()]
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    async with watched([agent.url for agent in agents], confirm_token_file=str(tmp_path / "token")) as (loop, client):

        async def post(path: str, ask: Any) -> int:
            return (await client.post(path, content=encode(ask))).status_code

        now = time.time()
        path = "/api/v1/confirm"
        ask = ConfirmAsk(Confirmation("n2", "confirmed", now, "bob", "it was so", ("n1",)), now, "2" * 16)
        assert await post(path, signed("another", CONFIRM, ask)) == 403 and await post(path, ask) == 403
        assert await post(path, signed(TOKEN, CONFIRM, structs.replace(ask, at=1.0))) == 409, "it is too old"
        assert [await post(path, signed(TOKEN, CONFIRM, ask)) for _ in range(2)] == [200, 409], "each word counts once"
        altered = structs.replace(signed(TOKEN, CONFIRM, structs.replace(ask, nonce="3" * 16)), nonce="4" * 16)
        assert await post(path, altered) == 403 and await post(path, {}) == 400
        await next_round(loop)
        await next_round(loop)
        (listed,) = (await client.get("/api/v1/exclusions")).json()["exclusions"]
        assert (listed["node"], listed["basis"]) == ("n2", "confirmed")


async def test_what_to_change_stands_in_the_api_in_locate_and_in_top(
    fake_agent: Start, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2), make.report("n0")),
        fake_agent(make.node("n1", [2, 3], slow=2), make.report("n1", ["ACS_ENABLED"])),
    ]
    async with watched([agent.url for agent in agents]) as (_, client):
        advised = decode((await client.get("/api/v1/recommendation")).content, Recommendation)
        (acs,) = [item for item in advised.items if "ACS_ENABLED" in item.evidence]
        assert acs.target == "pcie" and acs.repairs and "host.sh" in advised.files
        assert await laggard(client, "locate") == 1
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert lines[0].startswith("Rank 2 on n1 is slow in forward: ") and lines[1].startswith("What to do: ")
        changes = [line for line in lines if line.startswith("What to change: ")]
        assert changes[0] == f"What to change: {change_text(acs)}. Gain: {gain_text(acs.gain)}."
        assert not any("rank 2" in change for change in changes), "what to do of the culprit is said already"
        assert any(f"laggard recommend --collector {client.base_url}" in line for line in lines)
        assert await laggard(client, "top", "--once") == 1
        assert capsys.readouterr().out.startswith("Rank 2 on n1 is slow in forward: ")


async def test_where_no_job_runs_it_says_which_nodes_fail(
    fake_agent: Start, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ill = {"n0": ("GPU_LOST",), "n1": ("GPU_LOST", "DISK_FULL"), "n2": (), "n3": ()}
    agents = [fake_agent(make.ranks_document(node, []), make.report(node, codes)) for node, codes in ill.items()]
    async with watched([agent.url for agent in agents], max_drain_ratio=0.5) as (_, client):
        assert await laggard(client, "locate") == 2, "the verdict is on a job, and none runs"
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert lines[0].startswith("Cannot tell: 4 agents answer, but no training process")
        assert lines[1].startswith("2 of 4 nodes fail the health checks: ") and "GPU_LOST on n0" in lines[1]
        assert escape(lines[1]) in (await client.get("/")).text
        assert await laggard(client, "locate", "--format", "json") == 2
        assert [note["kind"] for note in json.loads(capsys.readouterr().out)["notes"]][:2] == [
            "no_ranks",
            "nodes_failing",
        ]
        answer = decode((await client.get("/api/v1/drains")).content, DrainsDocument)
        assert (answer.may_drain, answer.failing, answer.answering, answer.cap) == (False, 2, 4, 2)
        assert decode((await client.get("/api/v1/drains?node=n1")).content, DrainsDocument).may_drain
        assert "laggard_fleet_failing_nodes 2.0" in (await client.get("/metrics")).text


async def test_without_an_agent_the_verdict_is_unknown_with_a_reason() -> None:
    async with watched([f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]) as (_, client):
        assert (await location_of(client)).verdict is Verdict.UNKNOWN
        assert "Cannot tell: no agent answers (2 of 2 down)." in (await client.get("/")).text


async def test_before_the_first_round_it_is_healthy_and_not_ready(fake_agent: Start, make: Any) -> None:
    asked_enough = threading.Event()

    def answer(since: float) -> Any:
        asked_enough.wait(300)
        return make.ranks_document("n0", [])

    settings = CollectorSettings(incidents_database="")
    loop = ScrapeLoop(Discovery(parse_targets([fake_agent(answer).url])), settings, locate)
    rounds = asyncio.create_task(loop.run())
    async with over_http(loop, settings) as client:
        assert (await client.get("/-/healthy")).status_code == 200
        ready = await client.get("/-/ready")
        assert ready.status_code == 503 and "not ready" in ready.text
        assert "Cannot tell: the agents have not been asked yet." in (await client.get("/")).text
    asked_enough.set()
    rounds.cancel()
    await asyncio.gather(rounds, return_exceptions=True)


async def test_two_users_jobs_of_one_name_are_two_jobs(
    fake_agent: Start, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is calm, the other has a slow rank."""
    calm = fake_agent(make.node("n0", [0, 1], world_size=2, job_id="vic", owner=0), make.report("n0"))
    other = fake_agent(make.node("n1", [0, 1], slow=1, world_size=2, job_id="vic", owner=2000), make.report("n1"))
    async with watched([calm.url, other.url]) as (_, client):
        assert (await location_of(client, job="0:vic")).verdict is Verdict.OK
        slow = await location_of(client, job="2000:vic")
        assert (slow.verdict, slow.owner) == (Verdict.FAIL, 2000)
        for path in ("location", "recording", "ranks"):
            refused = await client.get(f"/api/v1/{path}?job=vic")
            assert refused.status_code == 409 and "0:vic" in refused.text and "2000:vic" in refused.text
        summary = decode((await client.get("/api/v1/summary?job=vic")).content, SummaryDocument)
        assert summary.job is None and "2 users have a job named vic" in summary.sentence
        metrics = (await client.get("/metrics")).text
        assert all(f'laggard_job_ranks{{job_id="vic",user="{user}"}} 2.0' in metrics for user in (0, 2000))
        assert await laggard(client, "locate", "--job", "vic") == 64
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1) and "0:vic" in error and "2000:vic" in error
        assert await laggard(client, "locate", "--job", "root:vic") == 0
        assert "Job vic of user root" in capsys.readouterr().out


async def test_a_flooding_user_costs_themselves_alone(fake_agent: Start, make: Any) -> None:
    def flood(agent: int) -> Any:
        return make.ranks_document(f"f{agent}", [make.rank_row(0, job_id=f"{agent}-{i}", owner=9) for i in range(64)])

    agents = [fake_agent(flood(0)), fake_agent(flood(1))]
    agents.append(fake_agent(make.node("n0", [0, 1], slow=1, world_size=2, job_id="real"), make.report("n0")))
    async with watched([agent.url for agent in agents], max_jobs=100) as (_, client):
        assert (await location_of(client, job="1000:real")).culprits[0].ranks == (1,)
        summary = decode((await client.get("/api/v1/summary?job=1000:real")).content, SummaryDocument)
        assert summary.sentence.startswith("Rank 1 on n0 is slow") and "are not watched" in summary.sentence
        assert re.search(r"^laggard_collector_jobs_not_held [1-9]", (await client.get("/metrics")).text, re.MULTILINE)
        unseen = [(await location_of(client, job=job)).notes[0] for job in ("9:0-63", "9:1-63")]
        assert any(note.kind == "job_not_held" and "not watched" in note.text for note in unseen), unseen


async def test_hostile_names_are_escaped(fake_agent: Start, make: Any) -> None:
    name = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
    agent = fake_agent(make.node(name, [0, 1], slow=1, world_size=2, job_id=name), make.report(name, [name]))
    async with watched([agent.url]) as (_, client):
        page = (await client.get("/")).text
        assert escape(name) in page and "<script>alert" not in page and "<img src=x" not in page
        assert (await client.get("/metrics")).text.count("\n") > 10
        assert (await location_of(client)).job_id == name
        for path in ("location", "nodes", "findings", "summary"):
            assert (await client.get(f"/api/v1/{path}")).headers["content-type"] == "application/json"


async def test_it_only_reads() -> None:
    async with watched([f"127.0.0.1:{free_port()}"]) as (_, client):
        for path in ("/", "/metrics", "/-/healthy", "/api/v1/nodes", "/api/v1/location", "/page/page.js"):
            head = await client.head(path)
            assert (head.status_code, head.content) == (200, b"")
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                assert (await client.request(method, path)).status_code == 405
        for path in ("/page/..%2fapp.py", "/page/../app.py", "/page/index.html", "/docs", "/openapi.json"):
            assert (await client.get(path)).status_code == 404
        senseless = {"Accept": "application/openmetrics-text;version=x.y;q=z;;;="}
        assert (await client.get("/metrics", headers=senseless)).status_code == 200


async def test_an_outlier_is_in_every_document(fake_agent: Start, make: Any) -> None:
    """Four nodes, the last with another kernel; its rank is slow. The finding joins the verdict."""

    def report(number: int) -> Any:
        release = "6.8.0-rc1" if number == 3 else "5.15.0"
        identity = {"product": "DGX H100", "gpu_models": ["H100"], "kernel_release": release}
        return structs.replace(make.report(f"n{number}"), facts={"identity": identity})

    agents = [fake_agent(make.node(f"n{i}", [i], slow=3), report(i)) for i in range(4)]
    async with watched([agent.url for agent in agents]) as (_, client):
        found = decode((await client.get("/api/v1/findings")).content, NodeFindingsDocument).findings
        told = [(it.node, it.finding.code, it.finding.device) for it in found]
        assert told == [("n3", "FLEET_OUTLIER", "kernel release")]
        assert (await rows_of(client))[agents[3].url].findings == ("FLEET_OUTLIER",)
        assert (await location_of(client)).culprits[0].findings == ("FLEET_OUTLIER",)
        labels = '{code="FLEET_OUTLIER",device="kernel release",hostname="n3",severity="warning"}'
        assert f"laggard_fleet_finding{labels} 1.0" in (await client.get("/metrics")).text
        summary = decode((await client.get("/api/v1/summary")).content, SummaryDocument)
        assert summary.fleet == ("n3: kernel release is 6.8.0-rc1; 3 of 4 nodes of the same hardware have 5.15.0",)


def stuck_job(name: str) -> RasSource:
    """NCCL's word that rank 2 of the job is behind."""
    rank = RasRank(2, "10.0.0.1", 77, 0, {"AllReduce": 8}, unchanged_seconds=200.0, readings=21)
    stuck = RasCommunicator("0xabc/0x1:0x2", 4, 4, {"AllReduce": 9}, 3, 200.0, 21, (rank,))
    return RasSource("asked", jobs=(RasJob(name, 1000, "2.30.7", 4.0, ("10.0.0.1",), (stuck,)),))


async def test_a_hang_of_a_job_without_hooks_is_in_every_document(fake_agent: Start, make: Any) -> None:
    told = structs.replace(make.ranks_document("n1", []), ras=stuck_job("nccl-abc"))
    agents = [fake_agent(told), fake_agent(make.node("n0", [0, 1], world_size=2), make.report("n0"))]
    async with watched([agent.url for agent in agents]) as (_, client):
        location = await location_of(client, job="nccl-abc")
        (culprit,) = location.culprits
        assert (culprit.kind, culprit.ranks, culprit.node, location.owner) == ("hung", (2,), "n1", 1000)
        series = 'laggard_culprit{hostname="n1",job_id="nccl-abc",kind="hung",rank="2",user="1000"}'
        assert series in (await client.get("/metrics")).text
        summary = decode((await client.get("/api/v1/summary")).content, SummaryDocument)
        assert {line.job_id for line in summary.jobs} == {"nccl-abc", "job-1"}
        assert decode((await client.get("/api/v1/ranks?job=nccl-abc")).content, HeatDocument).rows == ()


async def test_a_job_with_rank_files_is_not_judged_by_launch_counts(fake_agent: Start, make: Any) -> None:
    told = structs.replace(make.node("n0", [0, 1], world_size=2), ras=stuck_job("job-1"))
    async with watched([fake_agent(told, make.report("n0")).url]) as (_, client):
        location = await location_of(client)
        assert (location.ranks_seen, location.culprits) == (2, ())


async def test_the_nodes_that_are_due_for_a_ring(fake_agent: Start, make: Any) -> None:
    ages = (10.0, 200_000.0, "no number", 90_000.0)
    facts = [{"ring": {"age_seconds": age}} for age in ages]
    reports = [structs.replace(make.report(f"n{i}"), facts=its) for i, its in enumerate(facts)]
    agents = [fake_agent(make.ranks_document(f"n{i}", []), report) for i, report in enumerate(reports)]
    async with watched([agent.url for agent in agents]) as (_, client):
        plan = decode((await client.get("/api/v1/rings?hours=24&nodes=3")).content, RingsDocument)
        assert (plan.rings, plan.due, plan.measured, plan.busy) == ((("n2", "n1", "n3"),), 3, 1, 0)


async def test_a_gates_question_has_the_agent_asked_before_its_time(fake_agent: Start, make: Any) -> None:
    """What a gate says of its node is believed once the agent says so, and that is soon."""
    agent = fake_agent(make.ranks_document("n0", []), make.report("n0"))
    async with watched([agent.url], interval_seconds=1000.0, report_interval_seconds=1000.0) as (loop, client):

        async def asked() -> DrainsDocument:
            return decode((await client.get("/api/v1/drains?node=n0")).content, DrainsDocument)

        assert (first := await asked()).asker_is_well and not first.asker_fails
        finding = Finding("GPU_LOST", Severity.CRITICAL, "GPU 0", "", {}, Fix(""), "")
        agent.report = encode(structs.replace(make.report("n0"), verdict=Verdict.FAIL, findings=(finding,)))
        until = time.monotonic() + 60.0
        while not (await asked()).asker_fails:
            assert time.monotonic() < until, "the agent is not asked again"
            await asyncio.sleep(0.05)
        assert loop.snapshot.rounds < 20
