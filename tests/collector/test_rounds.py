"""Rounds of scrapes and what the API tells of them, in this process: agents are threads, and no daemon is started."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs
from support.ports import free_port

from laggard.collector.discovery import Discovery
from laggard.collector.scrape_loop import ScrapeLoop
from laggard.collector.settings import CollectorSettings
from laggard.collector.targets import parse_targets
from laggard.collector.web.app import make_app
from laggard.collector.web.documents import HeatDocument, SummaryDocument
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.wire import decode, encode
from laggard.wire.exclusion import ConfirmAsk, Confirmation
from laggard.wire.nodes import NodesDocument
from laggard.wire.signing import CONFIRM, signed

TOKEN = "a secret of operators"
Start = Callable[..., Any]
Look = Callable[[ScrapeLoop, httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))


def watched(targets: Sequence[str], look: Look, **changes: Any) -> None:
    """Calls `look` after the first round, with a client of the collector's application. `changes`: to its settings."""

    async def run() -> None:
        values = {"interval_seconds": 0.1, "report_interval_seconds": 0.1, "incidents_database": "", **changes}
        settings = CollectorSettings(**values)
        loop = ScrapeLoop(Discovery(parse_targets(targets)), settings, locate)
        transport = httpx.ASGITransport(make_app(loop, settings))
        rounds = asyncio.create_task(loop.run())
        try:
            assert await loop.refresh()
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                await look(loop, client)
        finally:
            rounds.cancel()
            await asyncio.gather(rounds, return_exceptions=True)

    asyncio.run(run())


async def next_round(loop: ScrapeLoop) -> None:
    before = loop.snapshot.rounds
    while loop.snapshot.rounds == before:
        await asyncio.sleep(0.01)


def test_a_slow_rank_is_named_in_every_document(fake_agent: Start, make: Any) -> None:
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2), make.report("n0")),
        fake_agent(make.node("n1", [2, 3], slow=2), make.report("n1", ["GPU_THROTTLED"])),
    ]

    async def look(loop: ScrapeLoop, client: httpx.AsyncClient) -> None:
        location = decode((await client.get("/api/v1/location")).content, Location)
        (culprit,) = location.culprits
        assert location.verdict is Verdict.FAIL and (culprit.ranks, culprit.node) == ((2,), "n1")
        assert culprit.findings == ("GPU_THROTTLED",)
        summary = decode((await client.get("/api/v1/summary")).content, SummaryDocument)
        assert summary.sentence.startswith("Rank 2 on n1 is slow in forward: ")
        heat = decode((await client.get("/api/v1/ranks")).content, HeatDocument)
        assert [row.first for row in heat.rows] == [0, 1, 2, 3] and len(heat.steps) == 60
        nodes = {row.node: row for row in decode((await client.get("/api/v1/nodes")).content, NodesDocument).nodes}
        assert (nodes["n0"].verdict, nodes["n1"].verdict, nodes["n1"].ranks) == ("ok", "fail", (2, 3))
        metrics = (await client.get("/metrics")).text
        assert 'laggard_culprit{hostname="n1",job_id="job-1",kind="slow_compute",rank="2",user="1000"} 0.' in metrics
        assert f'laggard_target_up{{target="{agents[0].url}"}} 1.0' in metrics
        recording = loop.recording("job-1")
        assert recording is not None
        assert [(rank, len(table)) for rank, table in sorted(recording.steps.items())] == [
            (rank, 60) for rank in range(4)
        ]

    watched([agent.url for agent in agents], look)


def test_failing_agents_are_named_and_the_others_are_judged(fake_agent: Start, make: Any) -> None:
    healthy = fake_agent(make.node("n0", [0, 1], world_size=2), make.report("n0"))
    failing = {
        f"http://127.0.0.1:{free_port()}": ("down", "no connection: connection refused"),
        fake_agent(b"<html>it works</html>").url: ("garbage", "not the JSON expected"),
        fake_agent(make.node("n1", [0]), status=500).url: ("garbage", "HTTP 500"),
        fake_agent(make.node("n2", [5], world_size=2)).url: ("garbage", "not a rank of 2"),
    }

    async def look(loop: ScrapeLoop, client: httpx.AsyncClient) -> None:
        nodes = {row.url: row for row in decode((await client.get("/api/v1/nodes")).content, NodesDocument).nodes}
        for url, (state, reason) in failing.items():
            assert (nodes[url].state, reason in nodes[url].reason) == (state, True), nodes[url]
        assert nodes[healthy.url].state == "up"
        assert decode((await client.get("/api/v1/location")).content, Location).verdict is Verdict.OK
        assert not loop.why_not_ready and (await client.get("/-/ready")).status_code == 200

    watched([healthy.url, *failing], look)


def test_a_later_round_asks_for_what_is_new_and_a_job_whose_agents_fell_silent_has_no_verdict(
    fake_agent: Start, make: Any
) -> None:
    rows = [make.step_row(step) for step in range(60)]

    def ranks(since: float) -> Any:
        told = [make.rank_row(rank, 2, [row for row in rows if row.end > since]) for rank in (0, 1)]
        return make.ranks_document("n0", told, next=rows[-1].end)

    agent = fake_agent(ranks, make.report("n0"))

    async def look(loop: ScrapeLoop, client: httpx.AsyncClient) -> None:
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

    watched([agent.url], look)


def test_what_operators_say_is_kept_for_who_has_the_token(fake_agent: Start, make: Any, tmp_path: Path) -> None:
    found = {"n1": [], "n2": ["GPU_LOST"]}
    agents = [fake_agent(make.ranks_document(node, []), make.report(node, codes)) for node, codes in found.items()]
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)

    async def look(loop: ScrapeLoop, client: httpx.AsyncClient) -> None:
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

    watched([agent.url for agent in agents], look, confirm_token_file=str(tmp_path / "token"))
