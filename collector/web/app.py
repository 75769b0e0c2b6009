"""The collector's HTTP side: the page, the API, the metrics and the health checks. Nothing is changed by a request, but
by agents with the token that ask for a ring."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from laggard.catalogue.exposition import exposition
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.api import MAX_RECORDINGS, Api
from laggard.collector.web.finding_page import finding_page
from laggard.collector.web.metrics import CollectorMetrics
from laggard.collector.web.middleware import with_host_check, with_security_headers
from laggard.collector.web.page_html import page_files, render
from laggard.collector.web.questions import OfJob
from laggard.collector.web.source import ClusterSource
from laggard.collector.web.summary import summary_document
from laggard.collector.web.tenants import TenantApp


def make_app(source: ClusterSource, settings: CollectorSettings, metrics: CollectorMetrics | None = None) -> ASGIApp:
    """Makes the ASGI application. `metrics`: the metrics that it shows, where other code uses them as well; None: it
    makes its own. Raises UsageError where the settings do not fit together."""
    shown = metrics or CollectorMetrics(source, settings.max_drain_ratio, exclude_seconds=settings.exclude_seconds)
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
    """Only GET and HEAD, and one POST (`web/idle_rings.py`). `metrics`: those of the whole cluster; `recordings`: how
    many are sent at once; both for all viewers together."""
    shown = metrics or CollectorMetrics(source, settings.max_drain_ratio, exclude_seconds=settings.exclude_seconds)
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
