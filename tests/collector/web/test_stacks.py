"""/api/v1/stacks of the collector: who reads what, and who may have ranks asked."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs
from support.made_snapshot import made_snapshot
from support.stack_documents import sampled

from laggard.collector.jobs.job import JobStacks
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants import Peer
from laggard.collector.web.app import make_app
from laggard.collector.web.connections import PEER
from laggard.model import JobKey
from laggard.wire import decode, encode
from laggard.wire.signing import STACKS, signed
from laggard.wire.stacks import MissingStacks, StacksAsk, StacksAsked, StacksDocument

TOKEN = "correct horse battery staple"
MINE, THEIRS = JobKey(61001, "mine"), JobKey(61002, "theirs")


class Source:
    """Two jobs of two users, of which stacks are held; `asked` notes which ranks were asked."""

    incidents = None

    def __init__(self) -> None:
        made = made_snapshot(8, steps=2)
        jobs = tuple(dataclasses.replace(made.jobs[0], key=key) for key in (MINE, THEIRS))
        self.snapshot: ClusterSnapshot = dataclasses.replace(made, jobs=jobs)
        self.asked: list[Any] = []

    def stacks(self, key: JobKey) -> JobStacks:
        return JobStacks({0: sampled(0, 0.5, job_id=key.job_id)}, {1: MissingStacks(1, "it has ended")}, (0, 1, 2))

    async def ask_for_stacks(self, key: JobKey, ranks: Sequence[int], samples: int, seconds: float) -> StacksAsked:
        self.asked.append((key, ranks, samples, seconds))
        return StacksAsked(key.owner, key.job_id, ("0" * 16,), tuple(ranks), seconds)


def client(source: Source, settings: CollectorSettings, user: str = "") -> httpx.AsyncClient:
    app = make_app(source, settings)  # type: ignore[arg-type]

    async def as_user(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {PEER: Peer("127.0.0.1", (), user)}}, receive, send)

    transport = httpx.ASGITransport(app=as_user)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def ask(job: str = "61001:mine", at: float | None = None, nonce: str = "n" * 32, **changes: Any) -> StacksAsk:
    return StacksAsk(time.time() if at is None else at, nonce, job, **changes)


@pytest.fixture
def settings(tmp_path: Path) -> CollectorSettings:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    return CollectorSettings(stacks_token_file=str(tmp_path / "token"), incidents_database="")


async def test_what_is_held_is_told(settings: CollectorSettings) -> None:
    async with client(Source(), settings) as http:
        found = decode((await http.get("/api/v1/stacks?job=61001:mine")).content, StacksDocument)
        assert [each.rank for each in found.ranks] == [0] and found.owner == 61001
        assert found.missing[0].reason == "it has ended" and "nobody has asked it" in found.missing[1].reason
        some = decode((await http.get("/api/v1/stacks?job=61001:mine&ranks=1,9")).content, StacksDocument)
        assert not some.ranks and {it.rank: it.reason for it in some.missing} == {
            1: "it has ended",
            9: "the job has no such rank",
        }
        assert (await http.get("/api/v1/stacks?job=nothing")).status_code == 404
        assert (await http.get("/api/v1/stacks?job=61001:mine&ranks=x")).status_code == 400
        every = ",".join(map(str, range(4096)))
        assert (await http.get(f"/api/v1/stacks?job=61001:mine&ranks={every}")).status_code == 200
        assert (await http.get(f"/api/v1/stacks?job=61001:mine&ranks={every},4096")).status_code == 400


async def test_a_user_sees_own_jobs_stacks_alone_and_operators_all(settings: CollectorSettings) -> None:
    tenants = structs.replace(
        settings, tenant_certificates=True, tenant_users={"ada": 61001, "ops": 1}, operators=("ops",)
    )
    source = Source()
    async with client(source, tenants, "ada") as http:
        assert (await http.get("/api/v1/stacks?job=61001:mine")).status_code == 200
        theirs = await http.get("/api/v1/stacks?job=61002:theirs")
        assert theirs.status_code == 404 and "tokenize" not in theirs.text
        # To ask takes the token, whoever one is: for each rank of the cluster, as an operator.
        refused = await http.post("/api/v1/stacks/ask", content=encode(signed("guess", STACKS, ask("61002:theirs"))))
        assert refused.status_code == 403 and not source.asked
    async with client(source, tenants, "ops") as http:
        assert (await http.get("/api/v1/stacks?job=61002:theirs")).status_code == 200
    async with client(source, tenants) as http:
        assert (await http.get("/api/v1/stacks?job=61001:mine")).status_code in (401, 403)


async def test_who_has_the_token_asks_and_an_eavesdropper_cannot_ask_again(settings: CollectorSettings) -> None:
    source = Source()
    async with client(source, settings) as http:

        async def post(asked: StacksAsk) -> httpx.Response:
            return await http.post("/api/v1/stacks/ask", content=encode(asked))

        good = signed(TOKEN, STACKS, ask(ranks=(1, 2), samples=20, seconds=2.0))
        reply = await post(good)
        assert reply.status_code == 200 and decode(reply.content, StacksAsked).ranks == (1, 2)
        assert source.asked == [(MINE, (1, 2), 20, 2.0)]
        assert (await post(good)).status_code == 409
        assert (await post(structs.replace(good, nonce="m" * 32))).status_code == 403
        assert (await post(structs.replace(good, ranks=()))).status_code == 403
        assert (await post(signed(TOKEN, STACKS, ask(at=time.time() - 1000, nonce="o" * 32)))).status_code == 409
        assert (await post(signed(TOKEN, STACKS, ask("nothing", nonce="p" * 32)))).status_code == 404
        for body in (b"", b"{}", b"x" * 100_000, encode(good).replace(b'"samples":20', b'"samples":9999')):
            assert (await http.post("/api/v1/stacks/ask", content=body)).status_code == 400
        assert len(source.asked) == 1
        assert (await http.get("/api/v1/stacks/ask")).status_code == 405
    async with client(source, structs.replace(settings, stacks_token_file="")) as http:
        off = await http.post("/api/v1/stacks/ask", content=encode(good))
        assert off.status_code == 403 and "no stacks_token_file" in off.text
