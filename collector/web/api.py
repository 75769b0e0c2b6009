"""The handlers of /api/v1: every document is made from the latest snapshot, and kept until the next. Nothing is
changed, but by who has a token."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from laggard.collector.fleet import drains_document
from laggard.collector.incidents.incident import of_incident, query_for
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web import nodes, questions
from laggard.collector.web.documents import LinksDocument, NodeFindingsDocument, TimelineDocument
from laggard.collector.web.heatmap import MapView, empty_heatmap, heatmap_document, map_medians
from laggard.collector.web.metric_links import MetricLinks
from laggard.collector.web.page_html import culprit_ranks
from laggard.collector.web.rings import idle_ring_handler, newest_ring, plan_rings, ring_suspects
from laggard.collector.web.signed_requests import confirm_handler, stacks_document, stacks_handler
from laggard.collector.web.source import ClusterSource, exclusions, node_history_of, situation_of
from laggard.collector.web.summary import job_names, summary_document
from laggard.collector.web.timeline import mean_own_seconds, timeline_document
from laggard.kit.words import seconds_text
from laggard.model import Note
from laggard.recommend.advice.watched import recommend_watched
from laggard.recording.writer import JobRecording
from laggard.wire import encode

T = TypeVar("T")

MAX_ANSWERS: Final = 64
"""The most answers that are kept of one snapshot. The largest, a heat map, has about a megabyte."""


class _Answer:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None


class SnapshotAnswers:
    """The answers of one snapshot, for use from threads. A second thread that asks for an answer that is being made
    waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot: object = None
        self._answers: dict[Hashable, _Answer] = {}

    def get(self, snapshot: object, key: Hashable, make: Callable[[], T]) -> T:
        """The answer that `make` returned for this snapshot and key. What it raises is not kept."""
        answer = self._answer(snapshot, key)
        with answer.lock:
            if answer.value is None:
                answer.value = make()
            value: T = answer.value
            return value

    def _answer(self, snapshot: object, key: Hashable) -> _Answer:
        with self._lock:
            if self._snapshot is not snapshot:
                self._snapshot, self._answers = snapshot, {}
            if key not in self._answers and len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]  # the oldest
            return self._answers.setdefault(key, _Answer())


MAX_RECORDINGS = 2
"""The number of recordings that are sent at once. The largest take tens of seconds of a core to write."""

_RECORDING_LINES = 1024
"""Lines that are written at once, about 200 kB."""

_NDJSON = "application/x-ndjson"


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
            Route("/api/v1/exclusions", self.exclusions),
            Route("/api/v1/confirm", confirm_handler(self.source, self.settings), methods=["POST"]),
            Route("/api/v1/rings", self.rings),
            Route("/api/v1/rings/newest", self.newest_ring),
            Route("/api/v1/rings/due", idle_ring_handler(self.source, self.settings), methods=["POST"]),
            Route("/api/v1/stacks", self.stacks),
            Route("/api/v1/stacks/ask", stacks_handler(self.source, self.settings), methods=["POST"]),
            Route("/api/v1/location", self.location),
            Route("/api/v1/recording", self.recording),
            Route("/api/v1/digest", self.digest),
            Route("/api/v1/summary", self.summary),
            Route("/api/v1/ranks", self.ranks),
            Route("/api/v1/timeline", self.timeline),
            Route("/api/v1/targets", self.targets),
            Route("/api/v1/links", self.links),
            Route("/api/v1/incidents", self.incidents),
            Route("/api/v1/history", self.history),
            Route("/api/v1/recommendation", self.recommendation),
        ]

    def nodes(self, request: Request) -> Response:
        snapshot, asked = self.source.snapshot, questions.Nodes.of(request)
        chosen = _nodes_asked(snapshot, asked)._replace(limit=asked.limit, find=asked.find)
        return _json(nodes.nodes_document(snapshot, chosen))

    def findings(self, request: Request) -> Response:
        snapshot, asked = self.source.snapshot, questions.Findings.of(request)
        found = nodes.findings_on(snapshot.findings, _nodes_asked(snapshot, asked).names)
        return _json(NodeFindingsDocument(found[: asked.limit or None], snapshot.fleet_notes, len(found)))

    def tiles(self, request: Request) -> Response:
        snapshot = self.source.snapshot
        return _sent(self.answers.get(snapshot, "tiles", lambda: encode(nodes.tiles_document(snapshot))))

    def newest_ring(self, request: Request) -> Response:
        return _json(newest_ring(self.source.snapshot.nodes))

    async def drains(self, request: Request) -> Response:
        """Waits for no thread: those may all be busy with answers to others."""
        node = questions.OfNode.of(request).node
        document = drains_document(self.source.snapshot, self.settings.max_drain_ratio, node)
        if node and document.asker_known and not document.asker_fails:
            self.source.look_at(node)
        return _json(document)

    def exclusions(self, request: Request) -> Response:
        seconds, settings = questions.Exclusions.of(request).seconds, self.settings
        kept = settings.exclude_seconds if seconds is None else seconds
        return _json(exclusions(self.source, settings.max_drain_ratio, kept))

    def rings(self, request: Request) -> Response:
        asked = questions.Rings.of(request)
        seconds = 3600 * asked.hours
        return _json(plan_rings(self.source.snapshot.nodes, seconds, asked.nodes, ring_suspects(self.source, seconds)))

    async def location(self, request: Request) -> Response:
        asked = questions.Fresh.of(request)
        fresh = not questions.is_on(asked.fresh) or await self.source.refresh()
        location = self._job(asked)[0].location(asked.job_name)
        if not fresh:
            location = structs.replace(location, notes=(*location.notes, self._stale_note()))
        return _json(location)

    async def recording(self, request: Request) -> Response:
        asked = questions.Fresh.of(request)
        if questions.is_on(asked.fresh):
            await self.source.refresh()
        self._job(asked)
        if self.recordings.locked():
            return PlainTextResponse("other recordings are being sent: ask again later\n", 503, {"Retry-After": "10"})
        found = self.source.recording(asked.job_name)
        if found is None:
            return PlainTextResponse("no such job is known here\n", 404)
        if request.method == "HEAD":
            return Response(media_type=_NDJSON)
        return StreamingResponse(self._send_recording(found), media_type=_NDJSON)

    async def digest(self, request: Request) -> Response:
        asked = questions.Run.of(request)
        _, job = self._job(asked)
        run = asked.run if asked.run != "incident" else of_incident(asked.incident or 0)
        found = await self.source.digest(asked.job_name, run)
        if found is None:
            text = f"nothing is kept of such a run ({run})" if job else "no such job is known here"
            return PlainTextResponse(f"{text}\n", 404)
        return _json(found)

    async def _send_recording(self, recording: JobRecording) -> AsyncIterator[bytes]:
        """The recording, a part at a time: a job of thousands of ranks has hundreds of megabytes."""
        lines = recording.lines()
        async with self.recordings:
            while part := await asyncio.to_thread(_encode_lines, lines):
                yield part

    def summary(self, request: Request) -> Response:
        asked = questions.Summary.of(request)
        snapshot, settings = self.source.snapshot, self.settings
        told = summary_document(snapshot, asked.job_name, settings.interval_seconds, asked.limit, asked.find)
        return _json(structs.replace(told, external_url=settings.external_url))

    def ranks(self, request: Request) -> Response:
        asked = questions.HeatMap.of(request)
        snapshot, job = self._job(asked)
        if job is None:
            return _json(empty_heatmap(asked.measure))
        shown = asked.measure, asked.rows, MapView(asked.order, asked.start, asked.stop)

        def make() -> bytes:
            medians = self.answers.get(snapshot, ("medians", job.key), lambda: map_medians(job.timings))
            return encode(heatmap_document(str(job.key), job.timings, *shown, medians))

        return _sent(self.answers.get(snapshot, ("ranks", job.key, shown), make))

    def timeline(self, request: Request) -> Response:
        asked = questions.Timeline.of(request)
        snapshot, job = self._job(asked)
        if job is None:
            return _json(TimelineDocument(None, [], ()))
        ranks = asked.ranks or culprit_ranks(job.location)
        own = self.answers.get(snapshot, ("mean own", job.key), lambda: mean_own_seconds(job.timings))
        look = partial(self.source.looked_at, job.key)
        return _json(timeline_document(str(job.key), job.timings, ranks, before=asked.before, mean_own=own, look=look))

    def stacks(self, request: Request) -> Response:
        asked = questions.Stacks.of(request)
        _, job = self._job(asked)
        held = self.source.stacks(job.key) if job else None
        if job is None or held is None:
            return PlainTextResponse("no such job is known here\n", 404)
        return _sent(encode(stacks_document(job.key, held, asked.ranks)))

    def targets(self, request: Request) -> Response:
        return _json(nodes.scrape_targets(self.source.snapshot.nodes))

    def links(self, request: Request) -> Response:
        """A node's before a job's, and a rank's of that job."""
        snapshot, asked = self.source.snapshot, questions.Links.of(request)
        if asked.node is not None:
            urls = (row.url for row in snapshot.nodes if nodes.name_of(row) == asked.node)
            address = next(urls, "").partition("://")[2]
            return _json(MetricLinks(self.settings).of_node(address) if address else LinksDocument(()))
        job = snapshot.job(asked.job_name)
        if job is None:
            return _json(LinksDocument(()))
        links = MetricLinks(self.settings, None if job.running else job.progressed_at or None)
        return _json(links.of_job(job.key) if asked.rank is None else links.of_rank(job.key, asked.rank))

    def incidents(self, request: Request) -> Response:
        asked = questions.Incidents.of(request)
        latest = self.source.snapshot.job(None) if asked.job == "" else None
        query = query_for(str(latest.key) if latest else asked.job or None)._replace(
            since=asked.since,
            before=asked.before,
            limit=asked.limit,
            open_only=questions.is_on(asked.open),
            node=asked.node,
        )
        found = self.source.incidents.document(query)
        jobs = job_names(self.source.snapshot, found.incidents)
        return _json(structs.replace(found, jobs=jobs))

    def history(self, request: Request) -> Response:
        return _json(node_history_of(self.source.incidents, questions.History.of(request).node, time.time()))

    def recommendation(self, request: Request) -> Response:
        asked = questions.OfJob.of(request)
        snapshot, job = self._job(asked)
        key = ("recommendation", job and job.key)
        return _sent(
            self.answers.get(snapshot, key, lambda: encode(recommend_watched(situation_of(snapshot, asked.job_name))))
        )

    def _job(self, asked: questions.OfJob) -> tuple[ClusterSnapshot, JobSnapshot | None]:
        """The job that is asked for, None where it is not known, and the snapshot that has it. Raises HTTPException,
        which Starlette answers, where several users' jobs have the name."""
        snapshot = self.source.snapshot
        if ambiguity := snapshot.ambiguity(asked.job_name):
            raise HTTPException(409, f"{ambiguity}\n")
        return snapshot, snapshot.job(asked.job_name)

    def _stale_note(self) -> Note:
        scraped_at = self.source.snapshot.scraped_at
        age = "not there yet" if scraped_at is None else f"{seconds_text(time.monotonic() - scraped_at)} old"
        text = f"the agents' answers are {age}: new ones from all of them take longer"
        return Note(kind="stale", text=text)


def _nodes_asked(snapshot: ClusterSnapshot, asked: questions.OfNodes) -> nodes.NodesAsked:
    """The node of that name, else those of that job; all where neither is given, or nothing says where the job runs."""
    if asked.node is not None:
        return nodes.NodesAsked(names={asked.node})
    job = None if asked.job is None else snapshot.job(asked.job)
    names = nodes.nodes_of(job)
    return nodes.NodesAsked(names=names, job=str(job.key) if job and names is not None else None)


def _json(document: Any) -> Response:
    return _sent(encode(document))


def _sent(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _encode_lines(lines: Iterator[dict[str, Any]]) -> bytes:
    """The next lines of a recording; empty at its end."""
    return b"".join(encode(line) + b"\n" for line in islice(lines, _RECORDING_LINES))
