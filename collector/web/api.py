"""The handlers of /api/v1: every document is made from the latest snapshot. Nothing is changed, but by agents that ask
for a ring with the token (idle_rings.py)."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from msgspec import structs
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from laggard.collector.fleet.drain_cap import drains_document
from laggard.collector.fleet.ring_plan import MAX_RING_NODES, MIN_RING_NODES, plan_rings
from laggard.collector.incidents.incident import DEFAULT_LIMIT, MAX_LIMIT, query_for
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.answers import SnapshotAnswers
from laggard.collector.web.chosen_nodes import (
    MAX_SEARCH_CHARACTERS,
    NodesAsked,
    findings_on,
    name_of,
    nodes_document,
    nodes_of,
)
from laggard.collector.web.documents import LinksDocument, NodeFindingsDocument, TimelineDocument
from laggard.collector.web.heatmap import (
    MAX_ROWS,
    MEASURES,
    ORDERS,
    MapView,
    empty_heatmap,
    heatmap_document,
    map_medians,
)
from laggard.collector.web.http_sd import scrape_targets
from laggard.collector.web.idle_rings import idle_ring_handler
from laggard.collector.web.kept_page import culprit_ranks
from laggard.collector.web.metric_links import MetricLinks
from laggard.collector.web.newest_ring import newest_ring
from laggard.collector.web.ring_suspects import ring_suspects
from laggard.collector.web.situation import situation_of
from laggard.collector.web.source import ClusterSource
from laggard.collector.web.summary import DEFAULT_JOBS, MAX_JOBS, JobsAsked, job_names, summary_document
from laggard.collector.web.tiles import tiles_document
from laggard.collector.web.timeline import MAX_RANKS, mean_own_seconds, timeline_document
from laggard.model import Note
from laggard.recommend.advice.recommend import recommend
from laggard.recording.writer import JobRecording
from laggard.text.words import seconds_text
from laggard.wire import encode

MAX_RECORDINGS = 2
"""How many recordings are sent at once. The largest take tens of seconds of a core to write."""

_RECORDING_LINES = 1024
"""Lines that are written at once, about 200 kB."""

LARGEST_SINCE = 1e11
"""Seconds: the year 5138."""

LARGEST_NUMBER = 2**53
"""Of an incident or a step: JSON's readers keep larger ones no longer apart."""

LARGEST_RANK = 2**31

_NDJSON = "application/x-ndjson"
_NUMBER = re.compile(r"[0-9]{1,32}(\.[0-9]{0,32})?([eE][-+]?[0-9]{1,3})?")


@dataclasses.dataclass(frozen=True)
class Api:
    """One handler for each route. Starlette runs those that are plain functions in threads."""

    source: ClusterSource
    settings: CollectorSettings
    answers: SnapshotAnswers = dataclasses.field(default_factory=SnapshotAnswers)
    recordings: asyncio.Semaphore = dataclasses.field(default_factory=lambda: asyncio.Semaphore(MAX_RECORDINGS))

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/nodes", self.nodes),
            Route("/api/v1/findings", self.findings),
            Route("/api/v1/tiles", self.tiles),
            Route("/api/v1/drains", self.drains),
            Route("/api/v1/rings", self.rings),
            Route("/api/v1/rings/newest", self.newest_ring),
            Route("/api/v1/rings/due", idle_ring_handler(self.source, self.settings), methods=["POST"]),
            Route("/api/v1/location", self.location),
            Route("/api/v1/recording", self.recording),
            Route("/api/v1/summary", self.summary),
            Route("/api/v1/ranks", self.ranks),
            Route("/api/v1/timeline", self.timeline),
            Route("/api/v1/targets", self.targets),
            Route("/api/v1/links", self.links),
            Route("/api/v1/incidents", self.incidents),
            Route("/api/v1/recommendation", self.recommendation),
        ]

    def nodes(self, request: Request) -> Response:
        """`?limit=N`: the N of them that need attention most; `?job=`, `?node=NAME`, `?find=TEXT`: of these alone."""
        snapshot, asked = self.source.snapshot, request.query_params
        limit = _whole(asked.get("limit", ""), LARGEST_RANK)
        if ("limit" in asked and limit is None) or len(asked.get("find", "")) > MAX_SEARCH_CHARACTERS:
            return PlainTextResponse(
                f"limit is a number of nodes, find up to {MAX_SEARCH_CHARACTERS} characters\n", 400
            )
        chosen = _chosen(snapshot, request)
        return _json(nodes_document(snapshot, NodesAsked(limit, chosen.nodes, asked.get("find", ""), chosen.job)))

    def findings(self, request: Request) -> Response:
        """`?limit=N`: the worst N of them; `?job=`, `?node=NAME`: those of its nodes, of one node alone."""
        snapshot = self.source.snapshot
        limit = _whole(request.query_params.get("limit", "0"), LARGEST_RANK)
        if limit is None:
            return PlainTextResponse("limit is a number of findings\n", 400)
        found = findings_on(snapshot.findings, _chosen(snapshot, request).nodes)
        return _json(NodeFindingsDocument(found[: limit or None], snapshot.fleet_notes, len(found)))

    def tiles(self, request: Request) -> Response:
        snapshot = self.source.snapshot
        return _sent(self.answers.get(snapshot, "tiles", lambda: encode(tiles_document(snapshot.nodes))))

    def newest_ring(self, request: Request) -> Response:
        return _json(newest_ring(self.source.snapshot.nodes))

    def drains(self, request: Request) -> Response:
        node = request.query_params.get("node")
        return _json(drains_document(self.source.snapshot, self.settings.max_drain_ratio, node))

    def rings(self, request: Request) -> Response:
        hours = _number(request.query_params.get("hours", "24"), 8760)
        size = _whole(request.query_params.get("nodes", "8"), MAX_RING_NODES)
        if not hours or size is None or size < MIN_RING_NODES:
            return PlainTextResponse(
                f"hours is a number up to 8760, nodes one from {MIN_RING_NODES} to {MAX_RING_NODES}\n", 400
            )
        suspects = ring_suspects(self.source, 3600 * hours)
        return _json(plan_rings(self.source.snapshot.nodes, 3600 * hours, size, suspects))

    async def location(self, request: Request) -> Response:
        fresh = await self._refresh_if_asked(request)
        location = self.source.snapshot.location(job_name(request))
        if not fresh:
            location = structs.replace(location, notes=(*location.notes, self._stale_note()))
        return self._refusal(request) or _json(location)

    async def recording(self, request: Request) -> Response:
        await self._refresh_if_asked(request)
        if refusal := self._refusal(request):
            return refusal
        if self.recordings.locked():
            return PlainTextResponse("other recordings are being sent: ask again later\n", 503, {"Retry-After": "10"})
        found = self.source.recording(job_name(request))
        if found is None:
            return PlainTextResponse("no such job is known here\n", 404)
        if request.method == "HEAD":
            return Response(media_type=_NDJSON)
        return StreamingResponse(self._send_recording(found), media_type=_NDJSON)

    async def _send_recording(self, recording: JobRecording) -> AsyncIterator[bytes]:
        """The recording, a part at a time: a job of thousands of ranks has hundreds of megabytes."""
        lines = recording.lines()
        async with self.recordings:
            while part := await asyncio.to_thread(_encode_lines, lines):
                yield part

    def summary(self, request: Request) -> Response:
        """`?limit=N`: N of the jobs; `?find=TEXT`: those with this in their name, user or script."""
        asked = request.query_params
        limit, find = _whole(asked.get("limit", str(DEFAULT_JOBS)), MAX_JOBS), asked.get("find", "")
        if limit is None or len(find) > MAX_SEARCH_CHARACTERS:
            return PlainTextResponse(
                f"limit is up to {MAX_JOBS} jobs, find up to {MAX_SEARCH_CHARACTERS} characters\n", 400
            )
        snapshot, interval = self.source.snapshot, self.settings.interval_seconds
        return _json(summary_document(snapshot, job_name(request), interval, JobsAsked(limit, find)))

    def ranks(self, request: Request) -> Response:
        asked = _map_asked(request)
        if isinstance(asked, str):
            return PlainTextResponse(f"{asked}\n", 400)
        if refusal := self._refusal(request):
            return refusal
        snapshot = self.source.snapshot
        job = snapshot.job(job_name(request))
        if job is None:
            return _json(empty_heatmap(asked.measure))

        def make() -> bytes:
            medians = self.answers.get(snapshot, ("medians", job.key), lambda: map_medians(job.timings))
            return encode(heatmap_document(str(job.key), job.timings, *asked, medians))

        return _sent(self.answers.get(snapshot, ("ranks", job.key, asked), make))

    def timeline(self, request: Request) -> Response:
        """`?ranks=3,7`: these ranks; without, those of the culprits."""
        numbers = [_whole(part, LARGEST_RANK) for part in request.query_params.get("ranks", "").split(",") if part]
        before = _whole(request.query_params.get("before", ""), LARGEST_NUMBER)
        if None in numbers or len(numbers) > MAX_RANKS or ("before" in request.query_params and before is None):
            text = f"ranks is up to {MAX_RANKS} numbers with commas between them, before the number of a step\n"
            return PlainTextResponse(text, 400)
        if refusal := self._refusal(request):
            return refusal
        snapshot = self.source.snapshot
        job = snapshot.job(job_name(request))
        if job is None:
            return _json(TimelineDocument(None, [], ()))
        ranks = [number for number in numbers if number is not None] or culprit_ranks(job.location)
        own = self.answers.get(snapshot, ("mean own", job.key), lambda: mean_own_seconds(job.timings))
        look = partial(self.source.looked_at, job.key)
        return _json(timeline_document(str(job.key), job.timings, ranks, before=before, mean_own=own, look=look))

    def targets(self, request: Request) -> Response:
        return _json(scrape_targets(self.source.snapshot.nodes))

    def links(self, request: Request) -> Response:
        """`?node=NAME`, else `?job=`, and `rank=N` of that job: where else its metrics can be seen."""
        snapshot, asked = self.source.snapshot, request.query_params
        rank = _whole(asked.get("rank", ""), LARGEST_RANK)
        if "rank" in asked and rank is None:
            return PlainTextResponse("rank is a rank's number\n", 400)
        if (node := asked.get("node")) is not None:
            urls = (row.url for row in snapshot.nodes if name_of(row) == node)
            address = next(urls, "").partition("://")[2]
            return _json(MetricLinks(self.settings).of_node(address) if address else LinksDocument(()))
        job = snapshot.job(job_name(request))
        if job is None:
            return _json(LinksDocument(()))
        links = MetricLinks(self.settings, None if job.running else job.progressed_at or None)
        return _json(links.of_job(job.key) if rank is None else links.of_rank(job.key, rank))

    def incidents(self, request: Request) -> Response:
        asked = request.query_params
        since = _number(asked.get("since", "0"), LARGEST_SINCE)
        before = _whole(asked.get("before", "0"), LARGEST_NUMBER)
        limit = _whole(asked.get("limit", str(DEFAULT_LIMIT)), MAX_LIMIT)
        if since is None or before is None or not limit:
            text = f"since is a time in Unix seconds, before a whole number, limit one from 1 to {MAX_LIMIT}\n"
            return PlainTextResponse(text, 400)
        query = query_for(self._job_asked(request))._replace(
            since=since if "since" in asked else None,
            before=before if "before" in asked else None,
            limit=limit,
            open_only=_is_on(asked.get("open")),
            node=asked.get("node"),
        )
        found = self.source.incidents.document(query)
        return _json(structs.replace(found, jobs=job_names(self.source.snapshot, found.incidents)))

    def _job_asked(self, request: Request) -> str | None:
        """`?job=` without a name is the job that progressed last, as it is everywhere; without `job`, all jobs."""
        latest = self.source.snapshot.job(None) if request.query_params.get("job") == "" else None
        return str(latest.key) if latest else job_name(request)

    def recommendation(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        snapshot = self.source.snapshot
        name = job_name(request)
        job = snapshot.job(name)
        key = ("recommendation", job and job.key)
        return _sent(self.answers.get(snapshot, key, lambda: encode(recommend(situation_of(snapshot, name)))))

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a name that several users' jobs have."""
        ambiguity = self.source.snapshot.ambiguity(job_name(request))
        return PlainTextResponse(f"{ambiguity}\n", 409) if ambiguity else None

    async def _refresh_if_asked(self, request: Request) -> bool:
        """`?fresh=1`: the agents are asked again before the answer. Returns whether it is as fresh as was asked for."""
        return await self.source.refresh() if _is_on(request.query_params.get("fresh")) else True

    def _stale_note(self) -> Note:
        scraped_at = self.source.snapshot.scraped_at
        age = "not there yet" if scraped_at is None else f"{seconds_text(time.monotonic() - scraped_at)} old"
        text = f"the agents' answers are {age}: new ones from all of them take longer"
        return Note(kind="stale", text=text)


def job_name(request: Request) -> str | None:
    """`?job=`: a job's key or id; None for the job that progressed last."""
    return request.query_params.get("job") or None


class _Chosen(NamedTuple):
    """Of which nodes a document is: names, None for all; and the job that these are of."""

    nodes: frozenset[str] | None
    job: str | None = None


def _chosen(snapshot: ClusterSnapshot, request: Request) -> _Chosen:
    """`?node=NAME`: that one; `?job=`: those of a job, of the one that progressed last where it has no name; all where
    neither is given, or nothing says where the job runs."""
    if (node := request.query_params.get("node")) is not None:
        return _Chosen(frozenset({node}))
    job = snapshot.job(job_name(request)) if "job" in request.query_params else None
    names = nodes_of(job)
    return _Chosen(names, str(job.key) if job and names is not None else None)


class _MapAsked(NamedTuple):
    measure: str
    rows: int
    view: MapView


def _map_asked(request: Request) -> _MapAsked | str:
    """Which heat map is asked for, or what is wrong with that."""
    asked = request.query_params
    measure, order, rows = asked.get("measure", "own"), asked.get("order", "rank"), asked.get("rows", "256")
    if measure not in MEASURES:
        return f"measure is one of {', '.join(MEASURES)}"
    if order not in ORDERS:
        return f"order is one of {', '.join(ORDERS)}"
    if not (rows.isascii() and rows.isdigit() and len(rows) < 9 and 1 <= int(rows) <= MAX_ROWS):
        return f"rows is a number from 1 to {MAX_ROWS}"
    start, stop = (_whole(asked.get(name, ""), LARGEST_RANK) for name in ("start", "stop"))
    if ("start" in asked and start is None) or ("stop" in asked and stop is None):
        return "start and stop are places in the order, from 0"
    return _MapAsked(measure, int(rows), MapView(order, start or 0, stop))


def _number(text: str, most: float) -> float | None:
    """The number from 0 to `most` that `text` is, None where it is none."""
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if number <= most else None


def _whole(text: str, most: int) -> int | None:
    """The whole number from 0 to `most` that `text` is, None where it is none."""
    number = int(text) if len(text) <= 16 and text.isascii() and text.isdigit() else most + 1
    return number if number <= most else None


def _is_on(text: str | None) -> bool:
    return text not in (None, "", "0")


def _json(document: Any) -> Response:
    return _sent(encode(document))


def _sent(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _encode_lines(lines: Iterator[dict[str, Any]]) -> bytes:
    """The next lines of a recording; empty at its end."""
    return b"".join(encode(line) + b"\n" for line in islice(lines, _RECORDING_LINES))
