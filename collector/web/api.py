"""The handlers of /api/v1: every document is made from the latest snapshot. Nothing is changed."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from laggard.collector.fleet.drain_cap import drains_document
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.documents import NodeFindingsDocument
from laggard.collector.web.heatmap import MAX_ROWS, MEASURES, empty_heatmap, heatmap_document
from laggard.collector.web.http_sd import scrape_targets
from laggard.collector.web.source import ClusterSource
from laggard.collector.web.summary import summary_document
from laggard.wire import encode
from laggard.wire.nodes import NodesDocument


@dataclasses.dataclass(frozen=True)
class Api:
    """One handler for each route. Starlette runs those that are plain functions in threads."""

    source: ClusterSource
    settings: CollectorSettings

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/nodes", self.nodes),
            Route("/api/v1/findings", self.findings),
            Route("/api/v1/drains", self.drains),
            Route("/api/v1/location", self.location),
            Route("/api/v1/recording", self.recording),
            Route("/api/v1/summary", self.summary),
            Route("/api/v1/ranks", self.ranks),
            Route("/api/v1/targets", self.targets),
        ]

    def nodes(self, request: Request) -> Response:
        return _json(NodesDocument(self.source.snapshot.nodes))

    def findings(self, request: Request) -> Response:
        snapshot = self.source.snapshot
        return _json(NodeFindingsDocument(snapshot.findings, snapshot.fleet_notes))

    def drains(self, request: Request) -> Response:
        node = request.query_params.get("node")
        return _json(drains_document(self.source.snapshot, self.settings.max_drain_ratio, node))

    async def location(self, request: Request) -> Response:
        await self._refresh_if_asked(request)
        return _json(self.source.snapshot.location(job_name(request)))

    async def recording(self, request: Request) -> Response:
        await self._refresh_if_asked(request)
        found = self.source.recording(job_name(request))
        if found is None:
            return PlainTextResponse("no such job is known here\n", 404)
        lines = await asyncio.to_thread(lambda: b"".join(encode(line) + b"\n" for line in found.lines()))
        return Response(lines, media_type="application/x-ndjson")

    def summary(self, request: Request) -> Response:
        snapshot, interval = self.source.snapshot, self.settings.interval_seconds
        return _json(summary_document(snapshot, job_name(request), interval))

    def ranks(self, request: Request) -> Response:
        measure, rows = request.query_params.get("measure", "own"), request.query_params.get("rows", "256")
        if measure not in MEASURES:
            return PlainTextResponse(f"measure is one of {', '.join(MEASURES)}\n", 400)
        if not (rows.isascii() and rows.isdigit() and len(rows) < 9 and 1 <= int(rows) <= MAX_ROWS):
            return PlainTextResponse(f"rows is a number from 1 to {MAX_ROWS}\n", 400)
        job = self.source.snapshot.job(job_name(request))
        if job is None:
            return _json(empty_heatmap(measure))
        return _json(heatmap_document(str(job.key), job.timings, measure, int(rows)))

    def targets(self, request: Request) -> Response:
        return _json(scrape_targets(self.source.snapshot.nodes))

    async def _refresh_if_asked(self, request: Request) -> None:
        """`?fresh=1`: the agents are asked again before the answer."""
        if request.query_params.get("fresh"):
            await self.source.refresh()


def job_name(request: Request) -> str | None:
    """`?job=`: a job's key or id; None for the job that progressed last."""
    return request.query_params.get("job") or None


def _json(document: Any) -> Response:
    return Response(encode(document), media_type="application/json")
