"""The collector's HTTP side: the page, the API, the metrics and the health checks. Answers have security headers, and
no name but its own is served."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laggard.catalogue.exposition import exposition
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.api import MAX_RECORDINGS, Api
from laggard.collector.web.doc_pages import finding_page, runbook_page
from laggard.collector.web.metrics import CollectorMetrics
from laggard.collector.web.page_html import page_files, render
from laggard.collector.web.questions import OfJob
from laggard.collector.web.source import ClusterSource
from laggard.collector.web.summary import summary_document
from laggard.collector.web.tenants import TenantApp
from laggard.kit import http_message as security_headers
from laggard.kit.words import printable_line

# The names that the collector answers to. A web page of somebody else can let its own name point to this address (DNS
# rebinding), and the browser then lets it read what is answered: so only names that nobody else can own are served.


def is_own_name(host: str, allowed: Sequence[str]) -> bool:
    """Whether a request with this Host header is answered. Addresses and names without a dot are, since neither can be
    made to point here by somebody outside; this machine's name is; and `allowed`, where `*.DOMAIN` stands for all names
    in a domain and `*` for all. An empty header is no browser's."""
    name = _without_port(host).rstrip(".").lower()
    if not name or "." not in name or name == os.uname().nodename.lower() or _is_address(name):
        return True
    return any(_matches(name, pattern.lower()) for pattern in allowed)


def _matches(name: str, pattern: str) -> bool:
    return pattern == "*" or name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


HEADERS: Final = security_headers.page("script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'")
"""The headers of the collector's page, which say what it may load: its own script, style, icon and API."""


def with_security_headers(app: ASGIApp) -> ASGIApp:
    """Wraps `app`: each answer gets those of HEADERS that `app` has not set itself. Errors that Starlette answers get
    them too, so this is the outermost layer."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS:
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    return wrapped


def with_host_check(app: ASGIApp, allowed: Sequence[str]) -> ASGIApp:
    """Wraps `app`: a request under another name than those of hosts.is_own_name() gets status 421. Starlette's own
    check takes names alone, and most clients here write an address."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if is_own_name(host, allowed):
            await app(scope, receive, send)
            return
        text = f"{printable_line(host, 100)} is not a name of this collector: list it under allowed_hosts\n"
        await PlainTextResponse(text, 421)(scope, receive, send)

    return wrapped


def make_app(source: ClusterSource, settings: CollectorSettings, metrics: CollectorMetrics | None = None) -> ASGIApp:
    """Makes the ASGI application. `metrics`: the metrics that it shows, where other code uses them as well; None: it
    makes its own. Raises UsageError where the settings do not fit together."""
    shown = metrics or CollectorMetrics.made(source, settings)
    routes = partial(all_routes, metrics=shown, recordings=asyncio.Semaphore(MAX_RECORDINGS))
    app: ASGIApp
    if settings.shows_tenants_their_own:
        app = TenantApp(source, settings, routes)
    else:
        app = Starlette(routes=routes(source, settings))
    return with_security_headers(with_host_check(app, settings.allowed_hosts))


def all_routes(
    source: ClusterSource,
    settings: CollectorSettings,
    *,
    metrics: CollectorMetrics | None = None,
    recordings: asyncio.Semaphore | None = None,
) -> list[Route]:
    """Only GET and HEAD, and POSTs that are signed. `metrics`: those of the whole cluster; `recordings`: how many are
    sent at once; both for all viewers together."""
    shown = metrics or CollectorMetrics.made(source, settings)
    api = Api(source, settings, recordings=recordings or asyncio.Semaphore(MAX_RECORDINGS))
    return [*_Site(source, settings, shown.of(source)).routes(), *api.routes()]


@dataclasses.dataclass(frozen=True)
class _Site:
    """The handlers of everything but the API. Starlette runs those that are plain functions in threads; what
    supervisors ask waits for no thread."""

    source: ClusterSource
    settings: CollectorSettings
    shown: CollectorMetrics

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/page/{name}", _page_file),
            Route("/findings/{code}", finding_page),
            Route("/runbooks/{alert}", runbook_page),
            Route("/metrics", self.metrics),
            Route("/-/healthy", _healthy),
            Route("/-/ready", self.ready),
        ]

    def page(self, request: Request) -> Response:
        snapshot, interval = self.source.snapshot, self.settings.interval_seconds
        return HTMLResponse(render(summary_document(snapshot, OfJob.of(request).job_name, interval)))

    def metrics(self, request: Request) -> Response:
        body, content_type = exposition(self.shown.families(), request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    async def ready(self, request: Request) -> Response:
        if why := self.source.why_not_ready:
            return PlainTextResponse(f"not ready: {why}\n", 503)
        return PlainTextResponse("ready\n")


async def _healthy(request: Request) -> Response:
    return PlainTextResponse("healthy\n")


def _page_file(request: Request) -> Response:
    found = page_files().get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("no such file\n", 404)
    # no-cache means that the browser asks first: a new version of the collector brings new scripts.
    return Response(found[0], media_type=found[1], headers={"Cache-Control": "no-cache"})
