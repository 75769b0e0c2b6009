"""Who asks, in front of the collector's handlers, where the user database hangs."""

import asyncio
import dataclasses
import threading
from typing import Any

import pytest
from msgspec import structs
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.made_snapshot import made_snapshot

from laggard.collector import tenants as users
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants import Peer, Viewer
from laggard.collector.web import tenants
from laggard.collector.web.app import make_app
from laggard.collector.web.connections import PEER
from laggard.model import JobKey

SETTINGS = CollectorSettings(tenant_certificates=True, tenant_users={"ada": 61001}, incidents_database="")


class Source:
    snapshot = ClusterSnapshot(nodes=())
    incidents = None

    async def refresh(self) -> bool:
        return True


async def asked(app: Any, user: str, path: str = "/api/v1/nodes") -> tuple[int, str]:
    """Status and text of a question that a certificate of `user` asks."""
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": b"", "query_string": b"", "headers": [],
        "root_path": "", "scheme": "https", "http_version": "1.1", "state": {PEER: Peer("10.0.0.1", (), user)},
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


async def test_a_user_database_that_hangs_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, hung = threading.Event(), threading.Event()
    real = users.pwd.getpwnam

    def getpwnam(name: str) -> Any:
        if name.startswith("slow"):
            hung.set()
            assert answers.wait(300)
        return real("nobody" if name.startswith("slow") else name)

    monkeypatch.setattr(users.pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(tenants, "_LOOKUP_SECONDS", 0.2)
    app = make_app(Source(), SETTINGS)  # type: ignore[arg-type]
    assert (await asked(app, "ada"))[0] == 200
    refused = await asyncio.gather(*(asked(app, f"slow{number}") for number in range(20)))
    assert set(refused) == {(503, "the user database does not answer: ask again later\n")} and hung.is_set()
    assert (await asked(app, "ada"))[0] == 200, "a name that is known"
    assert await asyncio.wait_for(asyncio.to_thread(lambda: True), 60), "the collector's own work goes on"
    answers.set()
    monkeypatch.setattr(tenants, "_LOOKUP_SECONDS", 60.0)
    assert (await asked(app, "slow1"))[0] == 200


async def test_a_route_that_is_in_no_list_is_refused_to_everybody() -> None:
    def routes(source: Any, settings: CollectorSettings) -> list[Route]:
        return [Route(path, lambda _: PlainTextResponse("everything")) for path in ("/api/v1/new", "/api/v1/nodes")]

    app = tenants.TenantApp(Source(), structs.replace(SETTINGS, operators=("ops",), tenant_users={"ada": 1}), routes)
    for user in ("ada", "ops"):
        assert await asked(app, user) == (200, "everything")
        status, text = await asked(app, user, "/api/v1/new")
        assert status == 403 and text.startswith("/api/v1/new is ") and text.count("\n") == 1, text
        assert (await asked(app, user, "/api/v1/new/"))[0] in (307, 404)


def test_a_user_looks_at_own_ranks_and_sees_own_tiles_alone() -> None:
    """Two jobs of two users on nodes of their own; `looked` notes whose ranks the agents would be asked for."""
    mine, other = made_snapshot(8, steps=2), made_snapshot(16, steps=2)
    theirs = dataclasses.replace(other.jobs[0], key=JobKey(61002, "theirs"), agents=frozenset({other.nodes[1].url}))
    own = dataclasses.replace(mine.jobs[0], key=JobKey(61001, "mine"))
    looked: list[tuple[JobKey, Any]] = []

    class Looked(Source):
        snapshot = dataclasses.replace(mine, nodes=other.nodes, jobs=(own, theirs))

        def looked_at(self, key: JobKey, ranks: Any) -> dict[int, Any]:
            looked.append((key, ranks))
            return {}

    viewer = Viewer(61001, "ada")
    source = tenants.TenantSource(Looked(), viewer)  # type: ignore[arg-type]
    assert source.looked_at(JobKey(61002, "theirs"), [0]) == {} and looked == []
    assert source.looked_at(JobKey(61001, "mine"), [0]) == {} and looked == [(JobKey(61001, "mine"), [0])]
    status, text = asyncio.run(asked(make_app(Looked(), SETTINGS), "ada", "/api/v1/tiles"))  # type: ignore[arg-type]
    assert status == 200 and '"total":1' in text, "the second node runs another user's job"
