"""What the agent answers over HTTP. Everything is read; no request changes anything."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from msgspec import structs

from laggard import __version__
from laggard.agent.jobs.hook_blind import blind_jobs
from laggard.agent.jobs.transport import JobTransports
from laggard.agent.prober.loop import Rounds
from laggard.agent.ranks.cache import RankCache
from laggard.agent.ranks.reader import RankFiles
from laggard.agent.web import page
from laggard.agent.web.metrics import exposition
from laggard.http.message import HttpError, Request, Response
from laggard.http.security_headers import NO_PAGE
from laggard.wire import RanksDocument, encode

log = logging.getLogger("laggard.agent")

_MOST_SINCE: Final = 1e9  # seconds since boot: 31 years

Route = Callable[[Request], Response]


class Site:
    """The agent's pages. `ranks` is read anew for the API, `recent` is what a scrape may share with another."""

    def __init__(self, node: str, ranks: RankFiles, recent: RankCache, rounds: Rounds) -> None:
        self._node = node
        self._ranks = ranks
        self._recent = recent
        self._rounds = rounds
        self._transports = JobTransports()
        self._routes: Mapping[str, Route] = {
            "/": self._page,
            "/metrics": self._metrics,
            "/-/healthy": lambda _: _text(HTTPStatus.OK, "healthy"),
            "/-/ready": self._ready,
            "/api/v1/report": self._report,
            "/api/v1/ranks": self._ranks_document,
        }

    def handle(self, request: Request) -> Response:
        try:
            return self._find(request)(request)
        except HttpError as error:
            return error_response(error)
        except Exception:
            log.exception("a defect in laggard, while answering %s", request.path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect in laggard: the agent's log has the traceback")

    def _find(self, request: Request) -> Route:
        route = self._routes.get(request.path)
        if route is None:
            raise HttpError(HTTPStatus.NOT_FOUND, f"nothing here; there is {', '.join(self._routes)}")
        if request.method not in ("GET", "HEAD"):
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: nothing can be changed here")
        return route

    def _page(self, _: Request) -> Response:
        text = page.render(self._node, self._recent.get(), self._rounds.latest.report, __version__)
        return Response(HTTPStatus.OK, "text/html; charset=utf-8", text.encode(), page.HEADERS)

    def _metrics(self, request: Request) -> Response:
        body, content_type = exposition(self._judged(self._recent.get()), self._rounds.latest, request.accept)
        return _answer(HTTPStatus.OK, content_type, body)

    def _ready(self, _: Request) -> Response:
        if self._rounds.ready:
            return _text(HTTPStatus.OK, "ready")
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {self._rounds.latest.report.probes[0].reason}")

    def _report(self, _: Request) -> Response:
        latest = self._rounds.latest
        answer = _json(HTTPStatus.OK, latest.report)
        age = time.time() - latest.finished_at
        if not latest.complete or age < 0:  # without an age no gate takes it for a look of its own
            return answer
        return answer._replace(headers=(*answer.headers, ("Age", str(math.ceil(age)))))

    def _ranks_document(self, request: Request) -> Response:
        return _json(HTTPStatus.OK, self._judged(self._ranks.read(_since(request.query))))

    def _judged(self, ranks: RanksDocument) -> RanksDocument:
        transports = self._transports.findings(ranks.ranks, self._rounds.latest.report)
        findings = transports + blind_jobs(ranks.ranks)
        return structs.replace(ranks, findings=findings) if findings else ranks


def error_response(error: HttpError) -> Response:
    allow = (("Allow", "GET, HEAD"),) if error.status is HTTPStatus.METHOD_NOT_ALLOWED else ()
    return _error(error.status, str(error), allow)


def _since(query: str) -> float | None:
    given = parse_qs(query, keep_blank_values=True, max_num_fields=16).get("since")
    if given is None:
        return None
    try:
        since = float(given[-1])
    except ValueError:
        since = math.nan
    if not 0 <= since <= _MOST_SINCE:
        raise HttpError(HTTPStatus.BAD_REQUEST, "since is a time in seconds: pass `next` of the answer before, or 0")
    return since


def _json(status: HTTPStatus, document: Any) -> Response:
    return _answer(status, "application/json", encode(document))


def _error(status: HTTPStatus, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    answer = _json(status, {"error": text})
    return answer._replace(headers=answer.headers + headers)


def _text(status: HTTPStatus, text: str) -> Response:
    return _answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def _answer(status: HTTPStatus, content_type: str, body: bytes) -> Response:
    return Response(status, content_type, body, NO_PAGE)
