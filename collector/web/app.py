"""The collector's HTTP side: the page, the API and the metrics, all read from the latest picture. Nothing changes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from laggard.collector.fleet.drain_cap import drains_document
from laggard.collector.jobs.snapshot import Picture
from laggard.collector.recording.writer import Recording
from laggard.collector.web.documents import NodeFindingsDocument
from laggard.collector.web.heatmap import MAX_ROWS, MEASURES, empty_heat, heat_document
from laggard.collector.web.http_sd import scrape_targets
from laggard.collector.web.metrics import exposition
from laggard.collector.web.middleware import with_security_headers
from laggard.collector.web.page_html import page_files, render
from laggard.collector.web.summary import summary_document
from laggard.wire import NodesDocument, encode

GetPicture = Callable[[], Picture]
"""The latest picture; swapped as a whole after each round, so that a handler sees one round and not two."""


Look = Callable[[], Awaitable[None]]
"""Returns when the picture is at most about a second old, or that takes too long."""


Record = Callable[[str | None], Recording | None]
"""What is held of a job; to be called in the event loop."""


def make_app(
    picture: GetPicture, look: Look, record: Record, interval_seconds: float, max_drain_ratio: float
) -> ASGIApp:
    """Only GET and HEAD have routes."""
    site = _Site(picture, look, record, interval_seconds, max_drain_ratio)
    routes = [
        Route("/", site.page),
        Route("/page/{name}", _page_file),
        Route("/metrics", site.metrics),
        Route("/-/healthy", _healthy),
        Route("/-/ready", site.ready),
        Route("/api/v1/nodes", site.nodes),
        Route("/api/v1/findings", site.findings),
        Route("/api/v1/drains", site.drains),
        Route("/api/v1/location", site.location),
        Route("/api/v1/recording", site.recording),
        Route("/api/v1/summary", site.summary),
        Route("/api/v1/ranks", site.ranks),
        Route("/api/v1/targets", site.targets),
    ]
    return with_security_headers(Starlette(routes=routes))


@dataclasses.dataclass(frozen=True)
class _Site:
    """A handler for each route, as make_app() was told to read. Starlette runs those that are plain functions in
    threads."""

    picture: GetPicture
    look: Look
    record: Record
    interval_seconds: float
    max_drain_ratio: float

    def page(self, request: Request) -> Response:
        return HTMLResponse(render(summary_document(self.picture(), _job(request), self.interval_seconds)))

    def metrics(self, request: Request) -> Response:
        body, content_type = exposition(self.picture(), self.max_drain_ratio, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    def ready(self, request: Request) -> Response:
        if self.picture().rounds:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready: the first round of scrapes is under way\n", 503)

    def nodes(self, request: Request) -> Response:
        return _json(NodesDocument(self.picture().nodes))

    def findings(self, request: Request) -> Response:
        picture = self.picture()
        return _json(NodeFindingsDocument(picture.findings, picture.fleet_notes))

    def drains(self, request: Request) -> Response:
        return _json(drains_document(self.picture(), self.max_drain_ratio, request.query_params.get("node")))

    async def location(self, request: Request) -> Response:
        await self._refresh(request)
        return _json(self.picture().location(_job(request)))

    async def recording(self, request: Request) -> Response:
        await self._refresh(request)
        found = self.record(_job(request))
        if found is None:
            return PlainTextResponse("no such job is known here\n", 404)
        lines = await asyncio.to_thread(lambda: b"".join(encode(line) + b"\n" for line in found.lines()))
        return Response(lines, media_type="application/x-ndjson")

    def summary(self, request: Request) -> Response:
        return _json(summary_document(self.picture(), _job(request), self.interval_seconds))

    def ranks(self, request: Request) -> Response:
        return _ranks(self.picture(), request)

    def targets(self, request: Request) -> Response:
        return _json(scrape_targets(self.picture().nodes))

    async def _refresh(self, request: Request) -> None:
        """`?fresh=1`: the agents are asked anew before the answer."""
        if request.query_params.get("fresh"):
            await self.look()


def _page_file(request: Request) -> Response:
    found = page_files().get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("no such file\n", 404)
    # no-cache is "ask first": a new version of the collector brings a new script.
    return Response(found[0], media_type=found[1], headers={"Cache-Control": "no-cache"})


def _healthy(request: Request) -> Response:
    return PlainTextResponse("healthy\n")


def _ranks(picture: Picture, request: Request) -> Response:
    measure, rows = request.query_params.get("measure", "own"), request.query_params.get("rows", "256")
    if measure not in MEASURES:
        return PlainTextResponse(f"measure is one of {', '.join(MEASURES)}\n", 400)
    if not (rows.isascii() and rows.isdigit() and len(rows) < 9 and 1 <= int(rows) <= MAX_ROWS):
        return PlainTextResponse(f"rows is a number from 1 to {MAX_ROWS}\n", 400)
    job = picture.job(_job(request))
    return _json(heat_document(str(job.key), job.evidence, measure, int(rows)) if job else empty_heat(measure))


def _job(request: Request) -> str | None:
    return request.query_params.get("job") or None


def _json(document: Any) -> Response:
    return Response(encode(document), media_type="application/json")
