"""The collector's HTTP side: the page, the API and the metrics, all read from the latest picture. Nothing changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from laggard import __version__
from laggard.collector.documents import JobLine, NodeFindingsDocument, ScrapeTargets, SummaryDocument
from laggard.collector.drains import drains_document
from laggard.collector.fleet_view import fleet_lines
from laggard.collector.heat import MAX_ROWS, MEASURES, empty_heat, heat_document
from laggard.collector.landing import page_files, render
from laggard.collector.metrics import exposition
from laggard.collector.picture import Picture
from laggard.collector.recording import Recording
from laggard.collector.secure_headers import with_secure_headers
from laggard.collector.sentence import evidence_lines, note_lines, sentence
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
    """Only GET and HEAD have routes. Most handlers are plain functions: starlette runs them in threads."""

    def page(request: Request) -> Response:
        return HTMLResponse(render(_summary(picture(), _job(request), interval_seconds)))

    def page_file(request: Request) -> Response:
        found = page_files().get(request.path_params["name"])
        if found is None:
            return PlainTextResponse("no such file\n", 404)
        # no-cache is "ask first": a new version of the collector brings a new script.
        return Response(found[0], media_type=found[1], headers={"Cache-Control": "no-cache"})

    def metrics(request: Request) -> Response:
        body, content_type = exposition(picture(), max_drain_ratio, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    def healthy(request: Request) -> Response:
        return PlainTextResponse("healthy\n")

    def ready(request: Request) -> Response:
        if picture().rounds:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready: the first round of scrapes is under way\n", 503)

    def nodes(request: Request) -> Response:
        return _json(NodesDocument(picture().nodes))

    def findings(request: Request) -> Response:
        return _json(NodeFindingsDocument(picture().findings, picture().fleet_notes))

    def drains(request: Request) -> Response:
        return _json(drains_document(picture(), max_drain_ratio, request.query_params.get("node")))

    async def location(request: Request) -> Response:
        if request.query_params.get("fresh"):
            await look()
        return _json(picture().location(_job(request)))

    async def recording(request: Request) -> Response:
        if request.query_params.get("fresh"):
            await look()
        found = record(_job(request))
        if found is None:
            return PlainTextResponse("no such job is known here\n", 404)
        lines = await asyncio.to_thread(lambda: b"".join(encode(line) + b"\n" for line in found.lines()))
        return Response(lines, media_type="application/x-ndjson")

    def summary(request: Request) -> Response:
        return _json(_summary(picture(), _job(request), interval_seconds))

    def ranks(request: Request) -> Response:
        return _ranks(picture(), request)

    def targets(request: Request) -> Response:
        return _json(_targets(picture()))

    routes = [
        Route("/", page),
        Route("/page/{name}", page_file),
        Route("/metrics", metrics),
        Route("/-/healthy", healthy),
        Route("/-/ready", ready),
        Route("/api/v1/nodes", nodes),
        Route("/api/v1/findings", findings),
        Route("/api/v1/drains", drains),
        Route("/api/v1/location", location),
        Route("/api/v1/recording", recording),
        Route("/api/v1/summary", summary),
        Route("/api/v1/ranks", ranks),
        Route("/api/v1/targets", targets),
    ]
    return with_secure_headers(Starlette(routes=routes))


def _summary(picture: Picture, name: str | None, interval_seconds: float) -> SummaryDocument:
    job, location = picture.job(name), picture.location(name)
    lines = (
        JobLine(str(it.key), it.key.job_id, it.key.owner, it.running, it.location.ranks_seen, it.location.verdict)
        for it in picture.jobs
    )
    return SummaryDocument(
        version=__version__,
        age_seconds=None if picture.taken_at is None else round(time.monotonic() - picture.taken_at, 1),
        interval_seconds=interval_seconds,
        sentence=sentence(location),
        evidence=tuple(evidence_lines(location)),
        notes=tuple(note_lines(location)),
        job=str(job.key) if job else None,
        jobs=tuple(lines),
        location=location,
        fleet=fleet_lines(picture.fleet_findings, picture.fleet_notes),
    )


def _ranks(picture: Picture, request: Request) -> Response:
    measure, rows = request.query_params.get("measure", "own"), request.query_params.get("rows", "256")
    if measure not in MEASURES:
        return PlainTextResponse(f"measure is one of {', '.join(MEASURES)}\n", 400)
    if not (rows.isascii() and rows.isdigit() and len(rows) < 9 and 1 <= int(rows) <= MAX_ROWS):
        return PlainTextResponse(f"rows is a number from 1 to {MAX_ROWS}\n", 400)
    job = picture.job(_job(request))
    return _json(heat_document(str(job.key), job.evidence, measure, int(rows)) if job else empty_heat(measure))


def _targets(picture: Picture) -> tuple[ScrapeTargets, ...]:
    """Prometheus takes addresses without a scheme, and the scheme as a label."""
    by_scheme: dict[str, list[str]] = {}
    for row in picture.nodes:
        scheme, _, address = row.url.partition("://")
        by_scheme.setdefault(scheme, []).append(address)
    return tuple(
        ScrapeTargets(tuple(addresses), {} if scheme == "http" else {"__scheme__": scheme})
        for scheme, addresses in by_scheme.items()
    )


def _job(request: Request) -> str | None:
    return request.query_params.get("job") or None


def _json(document: Any) -> Response:
    return Response(encode(document), media_type="application/json")
