"""Every answer of the collector has the headers that keep a browser from running or lending what is in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import all_routes, make_app

ROUTES = all_routes(None, CollectorSettings())  # type: ignore[arg-type]


class Source:
    snapshot = ClusterSnapshot(nodes=())
    why_not_ready = ""
    incidents = IncidentHistory(HistorySettings("", 1, 1.0, 1.0))

    async def refresh(self) -> bool:
        return True

    def looked_at(self, key: Any, ranks: Any) -> dict[int, Any]:
        return {}

    def recording(self, name: str | None) -> None:
        return None

    async def digest(self, name: str | None, run: str) -> None:
        return None


def asked(app: Any, path: str, method: str = "GET", host: bytes = b"localhost") -> tuple[int, dict[str, str]]:
    """Status and headers."""
    sent: list[Any] = []
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", host)], "root_path": "", "scheme": "http", "http_version": "1.1",
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        try:
            await app(scope, receive, send)
        except ZeroDivisionError:  # a defect of a handler's, after its answer
            assert sent

    asyncio.run(run())
    start = sent[0]
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


def expect_headers(headers: dict[str, str], where: object) -> None:
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
        status, headers = asked(make_app(Source(), settings), path, method)
        expect_headers(headers, (method, path, status))
        kept = "no-cache" if route == "/page/{name}" and status == 200 else "no-store"
        assert headers["cache-control"] == kept, (method, path, status)


class Broken(Source):
    @property
    def snapshot(self) -> ClusterSnapshot:  # type: ignore[override]
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [("/nothing", b"localhost", 404), ("/", b"evil.example", 421), ("/api/v1/nodes", b"localhost", 500)],
)
def test_each_error(path: str, host: bytes, status: int) -> None:
    found, headers = asked(make_app(Broken(), CollectorSettings()), path, "GET", host)
    assert found == status
    expect_headers(headers, path)
