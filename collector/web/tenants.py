"""Users see their own jobs alone: in front of all routes it is decided who asks, and every handler of a user's request
reads from a source that has nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final, TypeVar

from msgspec import structs
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.incidents.incident import HistoryState, Incident, IncidentQuery, IncidentsDocument
from laggard.collector.jobs.job import JobStacks
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.scrape.collective_rounds import LookedRank
from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants import Admission, NotAdmitted, NotLookedUp, Peer, Viewer
from laggard.collector.visible import visible, visible_incident, visible_recording
from laggard.collector.web.connections import PEER
from laggard.collector.web.source import ClusterSource
from laggard.model import JobKey
from laggard.recording.writer import JobRecording
from laggard.wire.digest import Digest

log = logging.getLogger("laggard.collector")

T = TypeVar("T")


def _api(*names: str) -> frozenset[str]:
    return frozenset(f"/api/v1/{name}" for name in names)


OPEN: Final = _api("rings/due", "confirm", "stacks/ask") | {"/-/healthy", "/-/ready"}
"""The routes that are answered without asking who asks: they tell nothing of jobs or nodes; the POSTs have tokens of
their own."""

GATE: Final = "/api/v1/drains"
"""The path that gate_clients may ask."""

_PAGES: Final = frozenset(("/", "/page/{name}", "/findings/{code}", "/runbooks/{alert}", "/metrics"))
_OF_JOBS: Final = _api("location", "recording", "digest", "summary", "ranks", "timeline", "stacks", "recommendation")
_OF_NODES: Final = _api("nodes", "findings", "tiles", "rings/newest", "links", "history", "incidents")
TENANT: Final = _PAGES | _OF_JOBS | _OF_NODES
"""The routes that are answered to users, from their own source. A route belongs here when its handler reads from the
source alone."""

OPERATOR: Final = _api("rings", "targets", "exclusions") | {GATE}
"""The routes that are answered to operators alone: they are about the fleet. A route in none of these lists is refused
to everybody."""

_FLEET: Final = "is about the whole cluster: ask an operator, or be one (operators in the collector's settings)"
_UNLISTED: Final = "is in no list of who may ask it, a defect in laggard"

_MAX_VIEWERS: Final = 256

_LOOKUPS: Final = 4
_LOOKUP_SECONDS: Final = 5.0
"""The time that a client waits for a look-up of names, of which _LOOKUPS run at once."""

MakeRoutes = Callable[[ClusterSource, CollectorSettings], list[Route]]


class TenantApp:
    """The ASGI application where tenants see their own. `make_routes` makes all routes, with handlers that read from
    the source that they are given."""

    def __init__(self, source: ClusterSource, settings: CollectorSettings, make_routes: MakeRoutes) -> None:
        """Raises UsageError where the settings are wrong."""
        self._admission = Admission(settings)
        self._lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="users")
        self._source, self._make_routes = source, make_routes
        # A user's routes have no rings, confirm nothing, and ask no ranks.
        self._settings = structs.replace(settings, ring_token_file="", confirm_token_file="", stacks_token_file="")
        routes = make_routes(source, settings)
        listed = OPEN | TENANT | OPERATOR
        self._everything = Starlette(routes=[it if it.path in listed else _refused(it, _UNLISTED) for it in routes])
        self._open = Starlette(routes=[it for it in routes if it.path in OPEN])
        self._gate = Starlette(routes=[it for it in routes if it.path == GATE])
        self._apps: dict[Viewer, ASGIApp] = {}
        self._made_for: ClusterSnapshot | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await Starlette()(scope, receive, send)  # refuses it
            return
        try:
            app = await self._app(scope)
        except NotAdmitted as error:
            if error.status == HTTPStatus.FORBIDDEN:  # 401 is how a login begins
                log.warning("a client at %s was refused: %s", _peer(scope).address, error)
            headers = {"WWW-Authenticate": "Proxy-Login"} if error.status == 401 else {}
            app = PlainTextResponse(f"{error}\n", error.status, headers)
        await app(scope, receive, send)

    async def _app(self, scope: Scope) -> ASGIApp:
        """The application that answers this request. Raises NotAdmitted."""
        peer = _peer(scope)
        if scope["path"] in OPEN:
            return self._open
        if scope["path"] == GATE and self._admission.is_gate(peer):
            return self._gate
        viewer = await self._viewer(peer, Headers(scope=scope))
        return self._everything if viewer.is_operator else self._app_of(viewer)

    async def _viewer(self, peer: Peer, headers: Headers) -> Viewer:
        """Threads of their own wait for the user database: where it hangs, the rounds of scrapes go on, and so do the
        answers to those whose names are known. Raises NotAdmitted."""
        try:
            return self._admission.viewer(peer, headers)
        except NotLookedUp as error:
            looked_up = asyncio.get_running_loop().run_in_executor(self._lookups, self._admission.look_up, error.name)
        try:
            await asyncio.wait_for(looked_up, _LOOKUP_SECONDS)
            return self._admission.viewer(peer, headers)
        except (asyncio.TimeoutError, NotLookedUp):
            text = "the user database does not answer: ask again later"
            raise NotAdmitted(HTTPStatus.SERVICE_UNAVAILABLE, text) from None

    def _app_of(self, viewer: Viewer) -> ASGIApp:
        """The application of one user. Those of a round are dropped with it: what they keep of answers is old then."""
        snapshot = self._source.snapshot
        if snapshot is not self._made_for or len(self._apps) >= _MAX_VIEWERS:
            self._apps, self._made_for = {}, snapshot
        if viewer not in self._apps:
            routes = self._make_routes(TenantSource(self._source, viewer), self._settings)
            self._apps[viewer] = Starlette(routes=[it if it.path in TENANT else _refused(it, _FLEET) for it in routes])
        return self._apps[viewer]


class TenantSource(ClusterSource):
    """The cluster as one user may see it. Who asks for stacks has the token, and is no user here."""

    def __init__(self, source: ClusterSource, viewer: Viewer) -> None:
        assert viewer.uid is not None
        self._source, self._viewer, self._uid = source, viewer, viewer.uid
        self._seen: tuple[ClusterSnapshot, ClusterSnapshot] | None = None
        self._incidents = TenantIncidents(source.incidents, viewer.uid)

    @property
    def snapshot(self) -> ClusterSnapshot:
        whole, seen = self._source.snapshot, self._seen
        if seen is None or seen[0] is not whole:
            self._seen = seen = whole, visible(whole, self._viewer)
        return seen[1]

    @property
    def incidents(self) -> IncidentHistory:
        return self._incidents

    @property
    def why_not_ready(self) -> str:
        return self._source.why_not_ready

    async def refresh(self) -> bool:
        return await self._source.refresh()

    def looked_at(self, key: JobKey, ranks: Sequence[int]) -> Mapping[int, LookedRank]:
        return self._source.looked_at(key, ranks) if key.owner == self._uid else {}

    async def digest(self, name: str | None, run: str) -> Digest | None:
        """What is kept is of the same user's runs alone."""
        job = self.snapshot.job(name)
        return await self._source.digest(str(job.key), run) if job and job.key.owner == self._uid else None

    def stacks(self, key: JobKey) -> JobStacks | None:
        return self._source.stacks(key) if key.owner == self._uid else None

    def recording(self, name: str | None) -> JobRecording | None:
        snapshot = self.snapshot
        job = snapshot.job(name)
        found = self._source.recording(str(job.key)) if job else None
        if found is None or found.owner != self._uid:
            return None
        return visible_recording(found, snapshot, self._uid)


class TenantIncidents(IncidentHistory):
    """The incidents of one user's jobs: a history of its own, which takes nothing in and reads nothing. So whatever is
    not told here is empty: what is counted of all users together, what nodes have, on which others run, too, and what
    is the fleet's matter. Who confirms a suspect has the token, and is no user here."""

    def __init__(self, incidents: IncidentHistory, uid: int) -> None:
        super().__init__(HistorySettings(path="", max_bytes=0, keep_seconds=0.0, quiet_seconds=0.0))
        self._incidents, self._uid = incidents, uid

    @property
    def open(self) -> tuple[Incident, ...]:
        return tuple(visible_incident(it, self._uid) for it in self._incidents.open if it.owner == self._uid)

    @property
    def closed_lately(self) -> tuple[Incident, ...]:
        return tuple(visible_incident(it, self._uid) for it in self._incidents.closed_lately if it.owner == self._uid)

    def slow_links(self, since: float) -> tuple[Incident, ...]:
        return tuple(it for it in self.open if it.culprit.kind == "slow_link")

    def document(self, query: IncidentQuery) -> IncidentsDocument:
        if query.owner not in (None, self._uid):
            query = query._replace(since=None, before=0)  # another user's: none
        found = self._incidents.document(query._replace(owner=self._uid))
        own = tuple(visible_incident(it, self._uid) for it in found.incidents if it.owner == self._uid)
        return IncidentsDocument(own, found.next, len(self.open), found.now, self.told_state())

    def _stored(self, otherwise: T, read: Callable[[str], T]) -> T:
        return otherwise

    def told_state(self) -> HistoryState:
        """The reason names the collector's files."""
        state = self._incidents.told_state().state
        return HistoryState(state, "" if state == "on" else "an operator knows why")


def _peer(scope: Scope) -> Peer:
    """The peer at the other end of the request's connection; nobody who is trusted, where that is not known."""
    peer = scope.get("state", {}).get(PEER)
    return peer if isinstance(peer, Peer) else Peer("")


def _refused(route: Route, why: str) -> Route:
    """The route in place of one that the viewer may not ask."""

    def refuse(request: Request) -> Response:
        return PlainTextResponse(f"{route.path} {why}\n", 403)

    return Route(route.path, refuse, methods=sorted(route.methods or ("GET",)))
