"""Every answer of the collector has the headers that keep a browser from running or lending what is in it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from support.made_snapshot import Source

from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import all_routes, make_app

ROUTES = all_routes(None, CollectorSettings())  # type: ignore[arg-type]


def asked(app: Any, path: str, method: str = "GET", host: str = "localhost") -> httpx.Response:
    """Also where a handler has a defect."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, path)

    return asyncio.run(run())


def expect_headers(headers: httpx.Headers, where: object) -> None:
    wanted = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
    }
    assert {name: headers.get(name) for name in wanted} == wanted, where
    policy = headers.get("content-security-policy", "")
    for part in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert part in policy, (where, policy)
    assert "unsafe" not in policy and "*" not in policy, (where, policy)


@pytest.mark.parametrize("settings", [CollectorSettings(), CollectorSettings(tenant_certificates=True)])
@pytest.mark.parametrize("route", [route.path for route in ROUTES])
def test_each_route(route: str, settings: CollectorSettings) -> None:
    path = route.replace("{name}", "page.js").replace("{code}", "DISK_FULL")
    for method in ("GET", "HEAD", "POST"):
        answer = asked(make_app(Source(ClusterSnapshot(nodes=())), settings), path, method)
        where = (method, path, answer.status_code)
        expect_headers(answer.headers, where)
        kept = "no-cache" if route == "/page/{name}" and answer.status_code == 200 else "no-store"
        assert answer.headers["cache-control"] == kept, where


class Broken(Source):
    def __init__(self) -> None: ...

    @property
    def snapshot(self) -> ClusterSnapshot:  # type: ignore[override]
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [("/nothing", "localhost", 404), ("/", "evil.example", 421), ("/api/v1/nodes", "localhost", 500)],
)
def test_each_error(path: str, host: str, status: int) -> None:
    answer = asked(make_app(Broken(), CollectorSettings()), path, "GET", host)
    assert answer.status_code == status
    expect_headers(answer.headers, path)
